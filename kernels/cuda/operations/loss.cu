#include <algorithm>
#include <limits>
#include <optional>
#include <type_traits>

#include "core/operations/losses.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/block_reduce.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/last_block.h"
#include "kernels/cuda/device/row_share.h"
#include "kernels/cuda/device/step_scalar.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/fast_float.h"

// The losses. Of the cross entropy with class numbers a warp takes a row of logits (a block a long
// one); of the others a block takes a row, all in fp64: their outputs are few compared with a
// batch's activations. The block that arrives last sums over the rows in an order that their number
// alone decides. Labels are in device memory, so one outside the classes cannot stop the call: its
// row becomes NaN, which training reports as divergence.
namespace starling::cuda {
namespace {

constexpr Index kLongRow = 2048;  ///< classes from which a whole block takes a row

template <class C>
struct RowSums {
  C largest;
  double sum;            ///< Σ e^(logit - largest)
  double sum_of_logits;  ///< Σ (logit - largest)
};

template <int kTeam, class T, class Share>
__device__ RowSums<Compute<T>> sums_of(const Share& row, Index classes, bool smooth) {
  using C = Compute<T>;
  RowSums<C> result{-std::numeric_limits<C>::infinity(), 0.0, 0.0};
  row.each([&](auto, int, const auto& g) {
#pragma unroll
    for (const T logit : g.v) result.largest = max(widen(logit), result.largest);
  });
  result.largest = team_reduce<kTeam>(result.largest, Larger{});
  row.each([&](auto, int, const auto& g) {
    C sum = C(0);  // of a few elements, which are converted together
#pragma unroll
    for (const T logit : g.v) sum += math::exponential_of<T>(widen(logit) - result.largest);
    result.sum += static_cast<double>(sum);
  });
  result.sum = team_reduce<kTeam>(result.sum, Plus{});
  if (!smooth) return result;
  row.each([&](auto c, int, const auto& g) {
    C sum = C(0);
#pragma unroll
    for (const T logit : g.v)
      if (c++ < classes) sum += widen(logit) - result.largest;
    result.sum_of_logits += static_cast<double>(sum);
  });
  result.sum_of_logits = team_reduce<kTeam>(result.sum_of_logits, Plus{});
  return result;
}

/// Σ values by one block.
template <int kBlock>
__device__ double sum_of_block(const double* values, Index n, double* shared) {
  double sum = 0.0;
#pragma unroll 4
  for (Index i = threadIdx.x; i < n; i += kBlock) sum += values[i];
  return block_sum<kBlock>(sum, shared);
}

/// Reads a number from device memory; 1 if the address is null.
__device__ double or_one(const double* number) { return number != nullptr ? *number : 1.0; }

struct LossSettings {
  LossKind kind;
  Index rows, classes, line, ignored;    ///< line: numbers from one row to the next
  double parameter, smoothing, uniform;  ///< uniform: the smoothing's share of a class
  StepScalar<double> scale;              ///< of the gradient
  double loss_scale;
  const double* weight_factor;  ///< null: 1
};

/// Threads of a block whose teams have kTeam threads.
template <int kTeam>
constexpr int kBlockOf = kTeam == kWarp ? kThreads : kTeam;

/// Writes losses[row], dlogits and their sum's share in `loss`, these two unless they are null. One
/// team of kTeam threads to a row, each with kSize numbers at a time; kHeld is that of
/// RowShare.
template <int kTeam, int kSize, int kHeld, class T>
__global__ void __launch_bounds__(kBlockOf<kTeam>, 1)
    cross_entropy_rows(LossSettings s, const T* logits, const std::int32_t* labels, double* losses,
                       T* dlogits, unsigned* arrivals, Compute<T>* loss_sum) {
  using C = Compute<T>;
  constexpr int kBlock = kBlockOf<kTeam>;
  const int member = static_cast<int>(threadIdx.x) % kTeam;
  for (Index r = Index{blockIdx.x} * (kBlock / kTeam) + threadIdx.x / kTeam; r < s.rows;
       r += Index{gridDim.x} * (kBlock / kTeam)) {
    const T* row = logits + r * s.line;
    const std::int32_t label = labels[r];
    const bool valid = label >= 0 && label < s.classes;
    if (label == s.ignored) {
      if (member == 0) losses[r] = 0.0;
      for (Index c = member; dlogits != nullptr && c < s.classes; c += kTeam)
        dlogits[r * s.line + c] = T{};
      continue;
    }
    // Before any writes, since dlogits may be the logits.
    const C own = valid ? widen(row[label]) : C{};
    const RowShare<T, kSize, kTeam, kHeld> share(row, s.classes);
    const RowSums<C> sums = sums_of<kTeam, T>(share, s.classes, s.smoothing != 0.0);
    if (member == 0) {
      const double log_sum = log(sums.sum),
                   of_label = valid ? static_cast<double>(own - sums.largest) : 0.0;
      // Σ target_c · (log Σ exp - logit_c), target = (1 - ε)·onehot + ε/C
      const double loss =
          (1.0 - s.smoothing) * (log_sum - of_label) +
          s.uniform * (static_cast<double>(s.classes) * log_sum - sums.sum_of_logits);
      losses[r] = valid ? loss : std::numeric_limits<double>::quiet_NaN();
    }
    if (dlogits == nullptr) continue;
    const double scale = s.scale.get() * or_one(s.weight_factor);
    const C factor = valid ? static_cast<C>(scale / sums.sum) : std::numeric_limits<C>::quiet_NaN();
    const C offset = static_cast<C>(s.uniform * scale),
            of_label = static_cast<C>((1.0 - s.smoothing) * scale);
    share.each([&](auto c, int, auto g) {
#pragma unroll
      for (T& logit : g.v)
        logit = narrow<T>(math::exponential_of<T>(widen(logit) - sums.largest) * factor - offset);
      store_group<T, kSize>(dlogits + r * s.line + c, g);
    });
    if (valid && label / kSize % kTeam == member)  // its group is that thread's
      dlogits[r * s.line + label] =
          narrow<T>(math::exponential_of<T>(own - sums.largest) * factor - offset - of_label);
  }
  if (loss_sum == nullptr || !last_block(arrivals, gridDim.x)) return;
  __shared__ double shared[kBlock / kWarp];
  const double sum = sum_of_block<kBlock>(losses, s.rows, shared);
  if (threadIdx.x == 0) *loss_sum = static_cast<C>(sum * s.loss_scale * or_one(s.weight_factor));
}

/// The ignored label; an impossible one if none is ignored.
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
/// Calls run.operator()<kTeam, kSize, kHeld>(blocks). In 16 bits a row of up to 55,296 classes
/// stays in a block's registers, so that each logit is read once and its gradient written once.
template <class T, class Run>
void with_team(const Logits& l, Run run, const T* logits, const T* dlogits) {
  const auto whole = [&]<int kTeam, int kSize, int kHeld>() {
    if (kHeld > 0 && l.classes > kTeam * kSize * kHeld) return false;
    run.template operator()<kTeam, kSize, kHeld>(
        blocks_for(l.rows, kTeam == kWarp ? kThreads / kWarp : 1));
    return true;
  };
  if (l.classes < kLongRow) {
    whole.template operator()<kWarp, 1, 0>();
    return;
  }
  with_packs<T>(
      l.line,
      [&]<int kSize>() {
        if constexpr (sizeof(T) == 2 && kSize > 1) {
          if (whole.template operator()<256, kSize, 8>() ||
              whole.template operator()<512, kSize, 8>() ||
              whole.template operator()<768, kSize, 9>())
            return;
        }
        whole.template operator()<kThreads, kSize, 0>();
      },
      logits, dlogits);
}

constexpr int kWeighing = 1024;  ///< threads of a block

/// The rows' weights: added to *total, or of *factor the rows divided by them. One block.
__global__ void __launch_bounds__(kWeighing)
    weigh_rows(const std::int32_t* labels, Index rows, Index classes, const double* weights,
               Index ignored, double* factor, double* total) {
  __shared__ double shared[kWeighing / kWarp];
  double sum = 0.0;
#pragma unroll 4
  for (Index i = threadIdx.x; i < rows; i += kWeighing) {
    const Index label = labels[i];
    const bool valid = label >= 0 && label < classes;
    if (label != ignored && (valid || weights == nullptr))
      sum += weights != nullptr ? weights[label] : 1.0;
  }
  sum = block_sum<kWeighing>(sum, shared);
  if (threadIdx.x != 0) return;
  if (total != nullptr) *total += sum;
  *factor = total != nullptr ? 1.0 : sum > 0.0 ? static_cast<double>(rows) / sum : 0.0;
}

/// Writes losses[row], dx, and the losses' sum in `loss`; the last two unless they are null. Of
/// labels and targets, one is null.
template <class T>
__global__ void __launch_bounds__(kThreads, 3)
    target_loss_rows(LossSettings s, const T* x, const std::int32_t* labels,
                     const Compute<T>* targets, const double* weights, double* losses, T* dx,
                     unsigned* arrivals, Compute<T>* loss_sum) {
  __shared__ double shared[kThreads / kWarp];
  const bool softmax = is_softmax(s.kind);
  double scale = s.scale.get();
  __shared__ double factor;  // of weights; it would cost a register in every loop
  if (threadIdx.x == 0) factor = or_one(s.weight_factor);
  __syncthreads();
  scale *= factor;
  for (Index r = blockIdx.x; r < s.rows; r += gridDim.x) {
    const T* row = x + r * s.classes;
    const Index label = labels ? labels[r] : 0;
    const bool valid = label >= 0 && label < s.classes;
    if (labels && label == s.ignored) {
      if (threadIdx.x == 0) losses[r] = 0.0;
      for (Index c = threadIdx.x; dx != nullptr && c < s.classes; c += kThreads)
        dx[r * s.classes + c] = T{};
      continue;
    }
    const auto target = [&](Index c) {
      if (labels) return label == c ? 1.0 : 0.0;
      return static_cast<double>(targets[r * s.classes + c]);
    };
    double loss = 0.0, slopes = 0.0, offset = 0.0;
    if (softmax) {
      double largest = static_cast<double>(widen(row[0])), sum = 0.0;
      for (Index c = threadIdx.x; c < s.classes; c += kThreads) {
        const double score = static_cast<double>(widen(row[c]));
        largest = score > largest ? score : largest;
      }
      largest = block_reduce<kThreads>(largest, shared, Larger{});
      for (Index c = threadIdx.x; c < s.classes; c += kThreads)
        sum += ::exp(static_cast<double>(widen(row[c])) - largest);
      offset = largest + ::log(block_sum<kThreads>(sum, shared));
    }
    const auto term_of = [&](Index c) {
      const double score = static_cast<double>(widen(row[c]));
      const double weight = weights != nullptr ? weights[c] : 1.0;
      return softmax ? math::focal_loss(score - offset,
                                        weight * ((1.0 - s.smoothing) * target(c) + s.uniform),
                                        s.parameter)
                     : math::element_loss(s.kind, score, target(c), s.parameter);
    };
    for (Index c = threadIdx.x; c < s.classes; c += kThreads) {
      const math::LossTerm term = term_of(c);
      loss += term.value;
      slopes += term.slope;
    }
    loss = block_sum<kThreads>(loss, shared);
    slopes = block_sum<kThreads>(slopes, shared);
    if (threadIdx.x == 0)
      losses[r] = valid ? loss * factor : std::numeric_limits<double>::quiet_NaN();
    if (dx == nullptr) continue;
    for (Index c = threadIdx.x; c < s.classes; c += kThreads) {
      double slope = term_of(c).slope;
      if (softmax) slope -= ::exp(static_cast<double>(widen(row[c])) - offset) * slopes;
      dx[r * s.classes + c] = narrow<T>(static_cast<Compute<T>>(
          valid ? scale * slope : std::numeric_limits<double>::quiet_NaN()));
    }
  }
  if (loss_sum == nullptr || !last_block(arrivals, gridDim.x)) return;
  const double sum = sum_of_block<kThreads>(losses, s.rows, shared);
  if (threadIdx.x == 0) *loss_sum = static_cast<Compute<T>>(sum * s.loss_scale);
}

/// What a mean over rows of classes is multiplied with where they have weights, in fp64 on the
/// device; none: 1. Adds to the call's total where it has one.
Tensor weight_factor(CudaBackend& backend, const TargetLoss& args) {
  if (!args.weighted()) return {};
  const Logits l = logits_of(args.x, args.classes);
  const Tensor& targets = args.weighed();
  Tensor factor = backend.scratch(1, DType::kFloat64);
  launch(weigh_rows, {{1}, {kWeighing}, backend.handle()}, targets.data<std::int32_t>(),
         targets.elements(), l.classes, optional<double>(args.class_weights),
         ignored_of(args.ignored), factor.data<double>(), optional<double>(args.total));
  return factor;
}

LossSettings settings_of(CudaBackend& backend, const TargetLoss& args, const Tensor& factor) {
  const Logits l = logits_of(args.x, args.classes);
  const double gradient = args.scale * args.gradient_scale;
  const auto scale = backend.step_scalar<double>(
      gradient, [gradient](const StepValues& now, const StepValues& then) {
        return gradient * (now.loss_scale / then.loss_scale);
      });
  return {args.kind,
          l.rows,
          l.classes,
          l.line,
          ignored_of(args.ignored),
          args.parameter,
          args.label_smoothing,
          args.label_smoothing / static_cast<double>(l.classes),
          scale,
          args.scale,
          optional<double>(factor)};
}

/// The cross entropy whose targets are classes.
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
    const LossSettings settings = settings_of(backend, args, factor);
    const auto run = [&]<int kTeam, int kSize, int kHeld>(unsigned grid) {
      launch(cross_entropy_rows<kTeam, kSize, kHeld, T>,
             {{grid}, {kBlockOf<kTeam>}, backend.handle()}, settings, logits, labels,
             losses.data<double>(), dlogits, backend.arrivals(), loss);
    };
    with_team<T>(l, run, logits, dlogits);
  });
}

}  // namespace

void CudaBackend::issue(const TargetLoss& args) {
  const Logits l = logits_of(args.x, args.classes);
  const bool by_number = args.targets && args.targets.dtype() == DType::kInt32;
  if (by_number && args.kind == LossKind::kCrossEntropy && !args.class_weights)
    return cross_entropy(*this, args);
  const std::int32_t* labels = by_number ? args.targets.data<std::int32_t>() : nullptr;
  const Tensor factor = weight_factor(*this, args);
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    const C* targets = by_number ? nullptr : args.targets.data<C>();
    T* dx = optional<T>(args.dx);
    C* loss = optional<C>(args.loss);
    const Tensor losses = scratch(std::max<Index>(l.rows, 1), DType::kFloat64);
    launch(target_loss_rows<T>, {{blocks_for(l.rows, 1)}, {kThreads}, handle()},
           settings_of(*this, args, factor), args.x.data<T>(), labels, targets,
           optional<double>(args.class_weights), losses.data<double>(), dx, arrivals(), loss);
  });
}

}  // namespace starling::cuda
