#pragma once

#include <concepts>
#include <initializer_list>
#include <vector>

#include "core/backend.h"

// Which tensors each operation of core/backend.h reads and writes, from its arguments: what a check of the order between streams needs to
// know. An output that is added to is read and written. Where only part of a tensor is touched it is a view of that part; where it depends
// on numbers whether a tensor is read, it is.
namespace starling {

struct Accesses {
  std::vector<Tensor> reads, writes;  ///< none of them empty

  Accesses& read(std::initializer_list<Tensor> tensors) { return add(reads, tensors); }
  Accesses& write(std::initializer_list<Tensor> tensors) { return add(writes, tensors); }
  Accesses& change(std::initializer_list<Tensor> tensors) { return read(tensors).write(tensors); }
  /// Outputs that are overwritten, or with `accumulate` added to.
  Accesses& output(bool accumulate, std::initializer_list<Tensor> tensors) { return accumulate ? change(tensors) : write(tensors); }

 private:
  Accesses& add(std::vector<Tensor>& to, std::initializer_list<Tensor> tensors) {
    for (const Tensor& tensor : tensors) {
      if (tensor && tensor.elements() > 0) to.push_back(tensor);
    }
    return *this;
  }
};

inline Accesses accesses_of(const Conv2dForward& a) {
  return Accesses().read({a.x, a.weight, a.bias, a.norm.scale, a.norm.shift}).write({a.y, a.sum, a.square_sum});
}
inline Accesses accesses_of(const Conv2dBackwardData& a) {
  return Accesses()
      .read({a.dy, a.weight, a.norm.x, a.norm.mean, a.norm.inv_std, a.norm.gamma, a.norm.beta})
      .write({a.dx, a.norm.sum_dy, a.norm.sum_dy_xhat});
}
inline Accesses accesses_of(const Conv2dBackwardWeights& a) {
  return Accesses().read({a.x, a.dy, a.norm.scale, a.norm.shift}).output(a.accumulate, {a.dweight, a.dbias}).write({a.dweight_low});
}
inline Accesses accesses_of(const Matmul& a) { return Accesses().read({a.a, a.b, a.bias}).output(a.accumulate, {a.c}); }
inline Accesses accesses_of(const SumRows& a) { return Accesses().read({a.x}).output(a.accumulate, {a.y}); }
inline Accesses accesses_of(const ActivationForward& a) { return Accesses().read({a.x}).write({a.y}); }
inline Accesses accesses_of(const ActivationBackward& a) { return Accesses().read({a.x, a.dy}).write({a.dx}); }
inline Accesses accesses_of(const BatchNormForward& a) {
  Accesses result = Accesses().read({a.x, a.residual, a.gamma, a.beta}).write({a.y, a.saved_mean, a.saved_inv_std});
  if (a.training) return result.change({a.running_mean, a.running_var, a.batches_tracked});
  return result.read({a.running_mean, a.running_var});
}
inline Accesses accesses_of(const BatchNormBackward& a) {
  return Accesses()
      .read({a.x, a.y, a.dy, a.dy2, a.gamma, a.beta, a.saved_mean, a.saved_inv_std})
      .write({a.dx, a.dresidual})
      .output(a.accumulate, {a.dgamma, a.dbeta});
}
inline Accesses accesses_of(const ChannelSums& a) { return Accesses().read({a.x}).write({a.sum, a.square_sum}); }
inline Accesses accesses_of(const BatchNormFinish& a) {
  return Accesses()
      .read({a.sum, a.square_sum, a.gamma, a.beta})
      .change({a.running_mean, a.running_var, a.batches_tracked})
      .write({a.saved_mean, a.saved_inv_std, a.scale, a.shift});
}
inline Accesses accesses_of(const ScaleShift& a) {
  return Accesses().read({a.x, a.scale, a.shift, a.residual, a.residual_scale, a.residual_shift}).write({a.y});
}
inline Accesses accesses_of(const BatchNormBackwardSums& a) {
  return Accesses().read({a.x, a.dy, a.saved_mean, a.saved_inv_std, a.gamma, a.beta}).write({a.masked, a.sum_dy, a.sum_dy_xhat});
}
inline Accesses accesses_of(const BatchNormBackwardApply& a) {
  return Accesses()
      .read({a.x, a.dy, a.gamma, a.saved_mean, a.saved_inv_std, a.sum_dy, a.sum_dy_xhat})
      .write({a.dx})
      .output(a.accumulate, {a.dgamma, a.dbeta});
}
inline Accesses accesses_of(const LayerNormForward& a) {
  return Accesses().read({a.x, a.gamma, a.beta}).write({a.y, a.saved_mean, a.saved_inv_std});
}
inline Accesses accesses_of(const LayerNormBackward& a) {
  return Accesses().read({a.x, a.dy, a.gamma, a.saved_mean, a.saved_inv_std}).write({a.dx}).output(a.accumulate, {a.dgamma, a.dbeta});
}
inline Accesses accesses_of(const Pool2dForward& a) { return Accesses().read({a.x}).write({a.y, a.index}); }
inline Accesses accesses_of(const Pool2dBackward& a) { return Accesses().read({a.dy, a.index}).write({a.dx}); }
inline Accesses accesses_of(const GlobalAvgPoolForward& a) { return Accesses().read({a.x}).write({a.y}); }
inline Accesses accesses_of(const GlobalAvgPoolBackward& a) { return Accesses().read({a.dy}).write({a.dx}); }
inline Accesses accesses_of(const Add& a) { return Accesses().read({a.a, a.b}).write({a.y}); }
inline Accesses accesses_of(const SubsamplePadForward& a) { return Accesses().read({a.x}).write({a.y}); }
inline Accesses accesses_of(const SubsamplePadBackward& a) { return Accesses().read({a.dy}).write({a.dx}); }
inline Accesses accesses_of(const FlattenChannelsFirst& a) { return Accesses().read({a.x}).write({a.y}); }
inline Accesses accesses_of(const Dropout& a) { return Accesses().read({a.x}).write({a.y}); }
inline Accesses accesses_of(const SoftmaxCrossEntropy& a) { return Accesses().read({a.logits, a.labels}).write({a.loss, a.dlogits}); }
inline Accesses accesses_of(const ClassificationMetrics& a) { return Accesses().read({a.logits, a.labels}).change({a.totals}); }
inline Accesses accesses_of(const Cast& a) { return Accesses().read({a.x, a.blocks}).write({a.y}); }
inline Accesses accesses_of(const AugmentImages& a) { return Accesses().read({a.x, a.params}).write({a.y}); }
inline Accesses accesses_of(const WeightedSum& a) {
  Accesses result;
  for (int i = 0; i < a.terms; ++i) result.read({a.in[static_cast<std::size_t>(i)]});
  return result.output(a.accumulate, {a.out});
}
inline Accesses accesses_of(const SquaredDistance& a) { return Accesses().read({a.x, a.y}).change({a.totals.slice(a.index, Shape{1})}); }
inline Accesses accesses_of(const GradientControl& a) {
  return Accesses().read({a.totals.slice(a.first, Shape{a.count})}).write({a.control});
}
/// A template, since UpdateArgs is kernels/optimizer.h's.
template <std::same_as<UpdateArgs> Args>
Accesses accesses_of(const Args& a) {
  Accesses result = Accesses().read({a.x, a.gradient, a.gradient_low, a.control, a.decay}).write({a.x_out, a.low});
  for (const Tensor& state : a.states) result.change({state});
  for (const Tensor& received : a.received) result.read({received});
  return result;
}

}  // namespace starling
