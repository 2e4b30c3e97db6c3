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

/// Root mean square normalisation (Zhang and Sennrich 2019, arXiv 1910.07467) over the last
/// dimension. Tensor: weight (1).
class RmsNorm : public Layer {
 public:
  explicit RmsNorm(double eps = 1e-5) : eps_(eps) {}

 protected:
  Shape build(const Shape& input) override;
  Variable compute(const Variable& x, Pass& pass) override;

 private:
  double eps_;
  Parameter* weight_ = nullptr;
};

}  // namespace starling
