#include <algorithm>
#include <limits>
#include <optional>
#include <type_traits>

#include "core/operations/losses.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/block_reduce.h"
#include "kernels/cuda/device/column_tiles.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/last_block.h"
#include "kernels/cuda/device/step_scalar.h"
#include "kernels/cuda/operations/plain.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/activations.h"

// The loss and what evaluation counts: a warp takes a row of logits (a block a long one), and the
// block that arrives last sums over the rows in an order that their number alone decides. Labels
// are in device memory, so one outside the classes cannot stop the call: its row becomes NaN, which
// training reports as divergence.
namespace starling::cuda {
namespace {

constexpr Index kLongRow = 2048;  ///< classes from which a whole block takes a row

template <class C>
struct RowSums {
  C largest;
  double sum;            ///< Σ e^(logit - largest)
  double sum_of_logits;  ///< Σ (logit - largest)
};

/// Calls f(class, kSize logits from there on, how many of them there are) for the member's.
template <int kTeam, int kSize, class T, class F>
__device__ __forceinline__ void for_logits(const T* row, Index classes, Index member, F f) {
#pragma unroll 2
  for (Index c = member * kSize; c < classes; c += kTeam * kSize) {
    const Index left = classes - c;
    f(c, load_group<T, kSize>(row + c), left < kSize ? static_cast<int>(left) : kSize);
  }
}

template <int kTeam, int kSize, class T>
__device__ RowSums<Compute<T>> sums_of(const T* row, Index classes, Index member) {
  using C = Compute<T>;
  RowSums<C> result{widen(row[0]), 0.0, 0.0};
  for_logits<kTeam, kSize>(row, classes, member, [&](Index, const auto& g, int count) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const C logit = widen(g.v[j]);
      if (j < count && logit > result.largest) result.largest = logit;
    }
  });
  result.largest = team_reduce<kTeam>(result.largest, Larger{});
  for_logits<kTeam, kSize>(row, classes, member, [&](Index, const auto& g, int count) {
    C sum = C(0), of_logits = C(0);  // of few numbers, which are converted together
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      if (j >= count) continue;
      const C shifted = widen(g.v[j]) - result.largest;
      sum += math::exponential(shifted);
      of_logits += shifted;
    }
    result.sum += static_cast<double>(sum);
    result.sum_of_logits += static_cast<double>(of_logits);
  });
  result.sum = team_reduce<kTeam>(result.sum, Plus{});
  result.sum_of_logits = team_reduce<kTeam>(result.sum_of_logits, Plus{});
  return result;
}

/// Σ values by one block.
__device__ double sum_of_block(const double* values, Index n, double* shared) {
  double sum = 0.0;
#pragma unroll 4
  for (Index i = threadIdx.x; i < n; i += kThreads) sum += values[i];
  return block_sum<kThreads>(sum, shared);
}

/// The number at an address on the device; 1 where there is none.
__device__ double or_one(const double* number) { return number != nullptr ? *number : 1.0; }

struct LossSettings {
  Index rows, classes, line, ignored;  ///< line: numbers from one row to the next
  double smoothing;
  StepScalar<double> scale;  ///< of the gradient
  double loss_scale;
  const double* weight_factor;  ///< null: 1
};

/// Writes losses[row], dlogits and their sum's share in `loss`, these two unless they are null. One
/// team of kTeam threads to a row, each with kSize numbers at a time.
template <int kTeam, int kSize, class T>
__global__ void __launch_bounds__(kThreads, 1)
    cross_entropy_rows(LossSettings s, const T* logits, const std::int32_t* labels, double* losses,
                       T* dlogits, unsigned* arrivals, Compute<T>* loss_sum) {
  using C = Compute<T>;
  const Index member = threadIdx.x % kTeam, teams = Index{gridDim.x} * (kThreads / kTeam);
  const double uniform = s.smoothing / static_cast<double>(s.classes),
               scale = s.scale.get() * or_one(s.weight_factor);
  for (Index r = Index{blockIdx.x} * (kThreads / kTeam) + threadIdx.x / kTeam; r < s.rows;
       r += teams) {
    const T* row = logits + r * s.line;
    const Index label = labels[r];
    const bool valid = label >= 0 && label < s.classes;
    if (label == s.ignored) {
      if (member == 0) losses[r] = 0.0;
      for (Index c = member; dlogits != nullptr && c < s.classes; c += kTeam)
        dlogits[r * s.line + c] = T{};
      continue;
    }
    // Before anybody writes: dlogits may be the logits.
    const C own = valid ? widen(row[label]) : C{};
    const RowSums<C> sums = sums_of<kTeam, kSize>(row, s.classes, member);
    if (member == 0) {
      const double log_sum = log(sums.sum),
                   of_label = valid ? static_cast<double>(own - sums.largest) : 0.0;
      // Σ target_c · (log Σ exp - logit_c), target = (1 - ε)·onehot + ε/C
      const double loss = (1.0 - s.smoothing) * (log_sum - of_label) +
                          uniform * (static_cast<double>(s.classes) * log_sum - sums.sum_of_logits);
      losses[r] = valid ? loss : std::numeric_limits<double>::quiet_NaN();
    }
    if (dlogits == nullptr) continue;
    const C factor = valid ? static_cast<C>(scale / sums.sum) : std::numeric_limits<C>::quiet_NaN();
    const C offset = static_cast<C>(uniform * scale),
            of_label = static_cast<C>((1.0 - s.smoothing) * scale);
    for_logits<kTeam, kSize>(row, s.classes, member, [&](Index c, auto g, int) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const C gradient = math::exponential(widen(g.v[j]) - sums.largest) * factor - offset;
        g.v[j] = narrow<T>(c + j == label ? gradient - of_label : gradient);
      }
      store_group<T, kSize>(dlogits + r * s.line + c, g);
    });
  }
  if (loss_sum == nullptr || !last_block(arrivals, gridDim.x)) return;
  __shared__ double shared[kThreads / kWarp];
  const double sum = sum_of_block(losses, s.rows, shared);
  if (threadIdx.x == 0) *loss_sum = static_cast<C>(sum * s.loss_scale * or_one(s.weight_factor));
}

/// Writes losses[row] without smoothing, and how many classes come before the label's: larger
/// logits, and equal ones of a lower index. NaN comes before everything. Then totals[4] += the
/// losses, the rows with fewer than one and than five before, the rows; the `ignored` are none.
template <int kTeam, int kSize, class T>
__global__ void __launch_bounds__(kThreads, 1)
    metrics_rows(const T* logits, const std::int32_t* labels, Index rows, Index classes, Index line,
                 Index ignored, double* losses, std::int32_t* before, unsigned* arrivals,
                 double* totals) {
  using C = Compute<T>;
  const Index member = threadIdx.x % kTeam, teams = Index{gridDim.x} * (kThreads / kTeam);
  for (Index r = Index{blockIdx.x} * (kThreads / kTeam) + threadIdx.x / kTeam; r < rows;
       r += teams) {
    const T* row = logits + r * line;
    const Index label = labels[r];
    const bool valid = label >= 0 && label < classes;
    if (label == ignored) {
      if (member == 0) losses[r] = 0.0;
      continue;
    }
    const RowSums<C> sums = sums_of<kTeam, kSize>(row, classes, member);
    const C own = valid ? widen(row[label]) : std::numeric_limits<C>::quiet_NaN();
    int count = 0;
    for_logits<kTeam, kSize>(row, classes, member, [&](Index first, const auto& g, int there) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const C logit = widen(g.v[j]);
        const Index c = first + j;
        const bool before_it = !(logit <= own) || (logit == own && c < label);
        count += j < there && c != label && before_it ? 1 : 0;
      }
    });
    count = team_reduce<kTeam>(count, Plus{});
    if (member != 0) continue;
    losses[r] = log(sums.sum) - static_cast<double>(own - sums.largest);
    before[r] = valid ? count : std::numeric_limits<std::int32_t>::max();
  }
  if (!last_block(arrivals, gridDim.x)) return;
  __shared__ double shared[kThreads / kWarp];
  const double loss = sum_of_block(losses, rows, shared);
  double first = 0.0, fifth = 0.0, counted = 0.0;
  for (Index i = threadIdx.x; i < rows; i += kThreads) {
    if (labels[i] == ignored) continue;
    counted += 1.0;
    first += before[i] < 1 ? 1.0 : 0.0;
    fifth += before[i] < 5 ? 1.0 : 0.0;
  }
  first = block_sum<kThreads>(first, shared);
  fifth = block_sum<kThreads>(fifth, shared);
  counted = block_sum<kThreads>(counted, shared);
  if (threadIdx.x != 0) return;
  totals[0] += loss;
  totals[1] += first;
  totals[2] += fifth;
  totals[3] += counted;
}

/// The label that counts for nothing; one that there is not where none does.
Index ignored_of(std::optional<std::int32_t> ignored) {
  return ignored ? Index{*ignored} : std::numeric_limits<Index>::min();
}

/// Rows and classes of logits, and numbers from one row to the next.
struct Logits {
  Index rows = 0, classes = 0, line = 0;
};
Logits logits_of(const Tensor& x, Index classes) {
  const Index line = x.shape().back();
  return {x.elements() / line, classes > 0 ? classes : line, line};
}
/// Calls run.operator()<threads to a row, numbers at a time>(the grid).
template <class T, class Run>
void with_team(const Logits& l, Run run, const T* logits, const T* dlogits) {
  if (l.classes < kLongRow)
    run.template operator()<kWarp, 1>(blocks_for(l.rows, kThreads / kWarp));
  else
    with_packs<T>(
        l.line,
        [&]<int kSize>() { run.template operator()<kThreads, kSize>(blocks_for(l.rows, 1)); },
        logits, dlogits);
}

}  // namespace

void cross_entropy(CudaBackend& backend, const TargetLoss& args) {
  const Logits l = logits_of(args.x, args.classes);
  const std::int32_t* labels = args.targets.data<std::int32_t>();
  const Tensor factor = weight_factor(backend, args);
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    const T* logits = args.x.data<T>();
    T* dlogits = optional<T>(args.dx);
    Compute<T>* loss = optional<Compute<T>>(args.loss);
    const Tensor losses = backend.scratch(std::max<Index>(l.rows, 1), DType::kFloat64);
    const double scale = args.scale * args.gradient_scale;
    const LossSettings settings{
        l.rows,
        l.classes,
        l.line,
        ignored_of(args.ignored),
        args.label_smoothing,
        backend.step_scalar<double>(scale,
                                    [scale](const StepValues& now, const StepValues& then) {
                                      return scale * (now.loss_scale / then.loss_scale);
                                    }),
        args.scale,
        optional<double>(factor)};
    const auto run = [&]<int kTeam, int kSize>(unsigned grid) {
      launch(cross_entropy_rows<kTeam, kSize, T>, {{grid}, {kThreads}, backend.handle()}, settings,
             logits, labels, losses.data<double>(), dlogits, backend.arrivals(), loss);
    };
    with_team<T>(l, run, logits, dlogits);
  });
}

void CudaBackend::issue(const ClassificationMetrics& args) {
  const Logits l = logits_of(args.logits, args.classes);
  const std::int32_t* labels = args.labels.data<std::int32_t>();
  double* totals = args.totals.data<double>();
  floating(args.logits, [&](auto type) {
    using T = decltype(type);
    const T* logits = args.logits.data<T>();
    const Tensor losses = scratch(std::max<Index>(l.rows, 1), DType::kFloat64);
    const Tensor before = scratch(std::max<Index>(l.rows, 1), DType::kInt32);
    const auto run = [&]<int kTeam, int kSize>(unsigned grid) {
      launch(metrics_rows<kTeam, kSize, T>, {{grid}, {kThreads}, handle()}, logits, labels, l.rows,
             l.classes, l.line, ignored_of(args.ignored), losses.data<double>(),
             before.data<std::int32_t>(), arrivals(), totals);
    };
    with_team<T>(l, run, logits, nullptr);
  });
}

}  // namespace starling::cuda
