#pragma once

#include <optional>

#include "layers/layer.h"

namespace starling {

/// Layer normalisation (Ba et al. 2016, arXiv 1607.06450) over the last dimension, i.e. of images
/// over each pixel's channels. Tensors: weight (1), bias (0).
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

/// Group normalisation (Wu and He 2018, arXiv 1803.08494) of samples …×C over all dimensions before
/// the last and groups of channels; by default every channel is a group. Tensors: weight (1), bias
/// (0).
class GroupNorm : public Layer {
 public:
  GroupNorm(std::optional<std::int64_t> groups, double eps, bool affine)
      : groups_(groups), eps_(eps), affine_(affine) {}

 protected:
  Shape build(const Shape& input) override;
  Variable compute(const Variable& x, Pass& pass) override;

 private:
  std::optional<std::int64_t> groups_;
  double eps_;
  bool affine_;
  Parameter* gamma_ = nullptr;
  Parameter* beta_ = nullptr;
};

}  // namespace starling
