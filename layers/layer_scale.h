#pragma once

#include "layers/layer.h"

namespace starling {

/// A learned factor of every channel (Touvron et al. 2021, arXiv 2103.17239), at the end of a
/// residual's layers. Tensor: weight (C, or C×1×1 outside for images, as torchvision's ConvNeXt has
/// it).
class LayerScale : public Layer {
 public:
  /// `name`: of its tensor.
  explicit LayerScale(double initial, std::string name = "weight")
      : initial_(initial), tensor_(std::move(name)) {}
  /// Does forward(), then + residual, in one operation.
  Variable forward_residual(const Variable& x, const Variable& residual, Pass& pass);

 protected:
  Shape build(const Shape& input) override;
  Variable compute(const Variable& x, Pass& pass) override;

 private:
  double initial_;
  std::string tensor_;
  Parameter* scale_ = nullptr;
};

}  // namespace starling
