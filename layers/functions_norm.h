#pragma once

#include "core/operations/norms.h"
#include "core/operations/pointwise.h"
#include "layers/functions.h"
#include "layers/norm_statistics.h"

// What the files of the normalisations share.
namespace starling::functions::detail {

/// Targets of the gradients of a scale and a shift, parameters 0 and 1; empty for a frozen one.
struct ScaleShiftTargets {
  Tensor dgamma, dbeta;
  bool accumulate = false;
  explicit ScaleShiftTargets(Gradients& g);
};

/// A ReLU within an operation: whether there is one, and its ceiling, 6 for ReLU6.
struct Rectifier {
  bool relu = false;
  double ceiling = kNoCeiling;
};
/// Error(kInternal) where the activation is no ReLU, ReLU6 or kNone.
Rectifier rectifier_of(Activation active);

/// Momentum of the running statistics in this pass.
double momentum_of(const BatchNormState& state, const Pass& pass);

/// Values that a batch norm keeps for its backward pass. y only with a residual: without one the
/// ReLU's mask is found from x and beta again.
struct BatchNormSaved {
  Tensor x, y, gamma, beta, mean, inv_std;
  Rectifier rectifier;
  bool has_residual = false, training = true;
};
/// Input 0 is x, input 1 the residual; parameters 0 and 1 are gamma and beta. Up to two gradient
/// terms.
void batch_norm_backward(const BatchNormSaved& saved, Gradients& g);

/// A batch norm in training whose statistics are those of all ranks' batches, of one size each
/// (`ranks`). As torch.nn.SyncBatchNorm: the gradients of gamma and beta are sums over this
/// rank's batch alone.
Variable synchronized_batch_norm(const Variable& x, const BatchNormState& state,
                                 Rectifier rectifier, const Variable& residual, RankSums& ranks,
                                 Pass& pass);

}  // namespace starling::functions::detail
