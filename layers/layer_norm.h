#pragma once

#include "layers/layer.h"

namespace starling {

/// Layer normalisation (Ba et al. 2016, arXiv 1607.06450) over the last dimension, of images over
/// the channels of every pixel. Tensors: weight (1), bias (0).
class LayerNorm : public Layer {
 public:
  explicit LayerNorm(double eps = 1e-5) : eps_(eps) {}

 protected:
  Shape build(const Shape& input) override;
  Variable compute(const Variable& x, Pass& pass) override;

 private:
  double eps_;
  Parameter* gamma_ = nullptr;
  Parameter* beta_ = nullptr;
};

}  // namespace starling
