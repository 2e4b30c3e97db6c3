#pragma once

#include <cstdint>

#include "core/autograd.h"
#include "core/backend.h"
#include "core/operations/convolutions.h"
#include "core/operations/losses.h"
#include "core/operations/map.h"
#include "core/operations/pointwise.h"

// Functions with gradients: what layers are written with. Each runs its operation on the pass's
// backend and, where a gradient is wanted, records how to go back. Shapes are those of
// core/operations; parameters may be null where optional.
namespace starling::functions {

Variable conv2d(const Variable& x, Parameter& weight, Parameter* bias, const Window2d& window,
                Pass& pass);
/// x[…,I] · weightᵀ[I,O] + bias[O], then ReLU if `relu`; weight is O×I.
Variable linear(const Variable& x, Parameter& weight, Parameter* bias, Pass& pass,
                bool relu = false);

/// Batch normalisation over all but the last dimension, then + residual (if it holds a value), then
/// `active`, which is kNone, kRelu or kRelu6, as one operation.
struct BatchNormState {
  Parameter* gamma = nullptr;
  Parameter* beta = nullptr;
  ModelBuffer* running_mean = nullptr;
  ModelBuffer* running_var = nullptr;
  /// Optional int64 scalar: one more with every pass in training
  ModelBuffer* batches_tracked = nullptr;
  double eps = 1e-5, momentum = 0.1;
};
/// Normalises over a batch, or as the pass says (layers/norm_statistics.h). In training every
/// channel needs two values at least (Error(kUsage)). Otherwise, and where neither gamma nor beta
/// is trainable, the running statistics are constants.
Variable batch_norm(const Variable& x, const BatchNormState& state, Activation active,
                    const Variable& residual, Pass& pass);
/// Normalises over the last dimension.
Variable layer_norm(const Variable& x, Parameter& gamma, Parameter& beta, double eps, Pass& pass);
/// Rows of table[rows, columns] by number: tokens, int32 of any shape, become [tokens' shape,
/// columns] of the table's operand's type.
Variable embedding(const Tensor& tokens, Parameter& table, Pass& pass);
/// scale[C] · x along the last dimension, + residual (if it holds a value), as one operation.
Variable layer_scale(const Variable& x, Parameter& scale, const Variable& residual, Pass& pass);
Variable activation(const Variable& x, Activation kind, Pass& pass);
/// The function of an activation other than kNone, and that of its gradient.
MapFunction function_of(Activation kind);
MapFunction gradient_of(Activation kind);
/// The largest, the mean, or the blur of every window (Pooling).
Variable pool2d(const Variable& x, Pooling kind, const Window2d& window, Pass& pass);
Variable global_avg_pool(const Variable& x, Pass& pass);
Variable add(const Variable& a, const Variable& b, Pass& pass);
/// factor · x.
Variable scaled(const Variable& x, double factor, Pass& pass);
/// ResNet's option-A shortcut: every `stride`-th pixel, new channels zero, half of them before and
/// half after the old ones.
Variable subsample_pad(const Variable& x, std::int64_t stride, std::int64_t channels, Pass& pass);
/// The numbers in another shape.
Variable reshape(const Variable& x, const Shape& shape, Pass& pass);
/// [N,H,W,C] → [N, C·H·W] in PyTorch's order; any other rank is only reshaped.
Variable flatten(const Variable& x, Pass& pass);
/// Keeps a value with probability 1 - p and scales it by 1/(1 - p) in training; the identity
/// otherwise. Takes one number of pass.dropout_counter. `run` neighbouring values are kept or
/// dropped together; it divides their number.
Variable dropout(const Variable& x, double p, Pass& pass, std::int64_t run = 1);
/// Dropout of whole samples: a sample's values all become 0 with probability p in training, or are
/// all scaled by 1/(1 - p).
Variable stochastic_depth(const Variable& x, double p, Pass& pass);
/// The numbers of x in another floating format, without a gradient; itself where it is in that one.
Tensor in_format(const Tensor& x, DType format, Backend& backend);
/// Mean over the batch times `scale`; a scalar. labels: int32 [N], or a probability of each class,
/// [N,C].
Variable cross_entropy(const Variable& logits, const Tensor& labels, double label_smoothing,
                       double scale, Pass& pass);
struct TargetLossSettings {
  LossKind kind = LossKind::kCrossEntropy;
  double parameter = 0.0;        ///< γ of kFocal, δ of kHuber
  double label_smoothing = 0.0;  ///< of kCrossEntropy and kFocal
  Tensor class_weights = {};     ///< of these too: fp64 [C], or none
};
/// Mean over the rows of x[N,C] for kCrossEntropy and kFocal, otherwise over all elements, times
/// `scale`; a scalar, in fp32 where x is in low precision. targets: floating, as large as x; or
/// int32 [N], numbers of classes, which stand for one-hot rows. With class weights w the mean over
/// rows of numbers y is Σ w_y·l / Σ w_y, and 0 where that sum is 0; over other rows it stays Σ / N.
Variable target_loss(const Variable& x, const Tensor& targets, const TargetLossSettings& settings,
                     double scale, Pass& pass);

}  // namespace starling::functions
