#pragma once

#include "core/operations/pointwise.h"
#include "layers/functions.h"
#include "layers/layer.h"

namespace starling {

/// Batch normalisation (Ioffe and Szegedy 2015, arXiv 1502.03167) over all but the last dimension.
/// Tensors: weight (1), bias (0), and the buffers running_mean (0),
/// running_var (1), num_batches_tracked (0), which counts passes in training as in PyTorch. The
/// kernel that updates the running statistics increments it, so that all buffers are on the device.
class BatchNorm : public Layer {
 public:
  /// Without `trains_scale` the weight is the constant 1.
  explicit BatchNorm(double eps = 1e-5, double momentum = 0.1, bool trains_scale = true)
      : trains_scale_(trains_scale) {
    state_.eps = eps;
    state_.momentum = momentum;
  }
  /// forward(), then + residual (if it has a value), then `active` (kNone, kRelu or kRelu6), as one
  /// operation.
  Variable forward_fused(const Variable& x, Activation active, const Variable& residual,
                         Pass& pass);

 protected:
  Shape build(const Shape& input) override;
  Variable compute(const Variable& x, Pass& pass) override;

 private:
  functions::BatchNormState state_;
  bool trains_scale_;
};

}  // namespace starling
