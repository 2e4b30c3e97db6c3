#pragma once

#include "layers/layer.h"

namespace starling {

/// A learned factor for each channel (Touvron et al. 2021, arXiv 2103.17239), the last layer of a
/// residual's body. Tensor: weight (C; in files C×1×1 for images, as in torchvision's ConvNeXt).
class LayerScale : public Layer {
 public:
  explicit LayerScale(double initial, std::string name = "weight")
      : initial_(initial), tensor_(std::move(name)) {}
  /// forward(), then + residual, as one operation.
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
