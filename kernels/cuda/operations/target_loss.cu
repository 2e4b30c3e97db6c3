#include <algorithm>
#include <limits>
#include <type_traits>

#include "core/operations/losses.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/block_reduce.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/last_block.h"
#include "kernels/cuda/device/step_scalar.h"
#include "kernels/cuda/operations/plain.h"
#include "kernels/cuda/runtime/launch.h"

// The losses beside the plain cross entropy, and the table of classes that an evaluation counts. A
// block takes a row of outputs, all in fp64: they are few beside a batch's activations. The block
// that arrives last sums over the rows in an order that their number alone decides. A label outside
// the classes cannot stop the call: its row becomes NaN, and counts nowhere.
namespace starling::cuda {
namespace {

constexpr int kWeighing = 1024;  ///< threads of a block
/// The one that an operation ignores, or one that no label is.
constexpr Index kNoLabel = std::numeric_limits<Index>::min();

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

struct TargetSettings {
  LossKind kind;
  Index rows, classes, ignored;
  double parameter, smoothing;
  StepScalar<double> scale;  ///< of the gradient
  double loss_scale;
};

/// Writes losses[row], dx, and the losses' sum in `loss`; the last two unless they are null. Of
/// labels and targets, one is null.
template <class T>
__global__ void __launch_bounds__(kThreads, 3)
    target_loss_rows(TargetSettings s, const T* x, const std::int32_t* labels,
                     const Compute<T>* targets, const double* weights, const double* weight_factor,
                     double* losses, T* dx, unsigned* arrivals, Compute<T>* loss_sum) {
  __shared__ double shared[kThreads / kWarp];
  const bool softmax = is_softmax(s.kind);
  const double uniform = s.smoothing / static_cast<double>(s.classes);
  double scale = s.scale.get();
  __shared__ double factor;  // of weights; it would cost a register in every loop
  if (threadIdx.x == 0) factor = weight_factor != nullptr ? *weight_factor : 1.0;
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
                                        weight * ((1.0 - s.smoothing) * target(c) + uniform),
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
  double sum = 0.0;
  for (Index i = threadIdx.x; i < s.rows; i += kThreads) sum += losses[i];
  sum = block_sum<kThreads>(sum, shared);
  if (threadIdx.x == 0) *loss_sum = static_cast<Compute<T>>(sum * s.loss_scale);
}

/// A thread takes a row. Whole numbers add up to the same sum in any order.
template <class T>
__global__ void __launch_bounds__(kThreads)
    count_predictions(const T* logits, const std::int32_t* labels, Index rows, Index classes,
                      double* counts) {
  for (Index r = Index{blockIdx.x} * kThreads + threadIdx.x; r < rows;
       r += Index{gridDim.x} * kThreads) {
    const Index label = labels[r];
    if (label < 0 || label >= classes) continue;
    const T* row = logits + r * classes;
    Index best = 0;
    bool number = true;
    for (Index c = 0; c < classes; ++c) {
      const Compute<T> score = widen(row[c]);
      number = number && score == score;
      if (score > widen(row[best])) best = c;
    }
    atomicAdd(counts + label * (classes + 1) + (number ? best : classes), 1.0);
  }
}

struct Outputs {
  Index rows = 0, classes = 0;
};
Outputs outputs_of(const Tensor& x) { return {x.elements() / x.shape().back(), x.shape().back()}; }

}  // namespace

Tensor weight_factor(CudaBackend& backend, const TargetLoss& args) {
  if (!args.weighted()) return {};
  const Outputs o = outputs_of(args.x);
  Tensor factor = backend.scratch(1, DType::kFloat64);
  launch(weigh_rows, {{1}, {kWeighing}, backend.handle()}, args.targets.data<std::int32_t>(),
         o.rows, o.classes, optional<double>(args.class_weights),
         args.ignored ? Index{*args.ignored} : kNoLabel, factor.data<double>(),
         optional<double>(args.total));
  return factor;
}

void CudaBackend::issue(const TargetLoss& args) {
  const Outputs o = outputs_of(args.x);
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
    const Tensor losses = scratch(std::max<Index>(o.rows, 1), DType::kFloat64);
    const double scale = args.scale * args.gradient_scale;
    const TargetSettings settings{
        args.kind,
        o.rows,
        o.classes,
        args.ignored ? Index{*args.ignored} : kNoLabel,
        args.parameter,
        args.label_smoothing,
        step_scalar<double>(scale,
                            [scale](const StepValues& now, const StepValues& then) {
                              return scale * (now.loss_scale / then.loss_scale);
                            }),
        args.scale};
    launch(target_loss_rows<T>, {{blocks_for(o.rows, 1)}, {kThreads}, handle()}, settings,
           args.x.data<T>(), labels, targets, optional<double>(args.class_weights),
           optional<double>(factor), losses.data<double>(), dx, arrivals(), loss);
  });
}

void CudaBackend::issue(const ConfusionCounts& args) {
  const Outputs o = outputs_of(args.logits);
  const std::int32_t* labels = args.labels.data<std::int32_t>();
  double* counts = args.counts.data<double>();
  floating(args.logits, [&](auto type) {
    using T = decltype(type);
    launch(count_predictions<T>, {{blocks_for(o.rows, kThreads)}, {kThreads}, handle()},
           args.logits.data<T>(), labels, o.rows, o.classes, counts);
  });
}

}  // namespace starling::cuda
