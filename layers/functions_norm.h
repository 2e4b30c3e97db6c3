#pragma once

#include "layers/functions.h"

// What the files of the normalisations share.
namespace starling::functions::detail {

/// Where the gradients of a scale and a shift go. Kernels write both, so a frozen one goes to scratch memory.
struct ScaleShiftTargets {
  Tensor dgamma, dbeta;
  bool accumulate = false;
  ScaleShiftTargets(Gradients& g, const Tensor& gamma);

 private:
  Tensor scratch(Gradients& g, const Tensor& gamma) const;
};

/// What a batch norm keeps for its backward pass. y only with a residual: without one the ReLU's mask is found from x and beta again.
struct BatchNormSaved {
  Tensor x, y, gamma, beta, mean, inv_std;
  bool relu = false, has_residual = false, training = true;
};
/// Input 0 is x, input 1 the residual; parameters 0 and 1 are gamma and beta. Up to two gradient terms.
void batch_norm_backward(const BatchNormSaved& saved, Gradients& g);

/// A batch norm in training whose statistics the convolution before has gathered (x.statistics()). With a residual it is carried out;
/// otherwise it stays pending.
Variable deferred_batch_norm(const Variable& x, const BatchNormState& state, bool relu, const Variable& residual, Pass& pass);

}  // namespace starling::functions::detail
