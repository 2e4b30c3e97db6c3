#pragma once

#include <array>

#include "core/operations/convolutions.h"
#include "core/operations/pointwise.h"
#include "layers/functions.h"
#include "layers/layer.h"

// Layers without parameters that models are made with. Flatten and the poolings take images; the
// others any shape.
namespace starling {

/// A function of every value alone.
class ActivationLayer : public Layer {
 public:
  explicit ActivationLayer(Activation kind) : kind_(kind) {}
  Activation kind() const { return kind_; }

 protected:
  Shape build(const Shape& input) override { return input; }
  Variable compute(const Variable& x, Pass& pass) override {
    return functions::activation(x, kind_, pass);
  }

 private:
  Activation kind_;
};

/// A function of values, whose result has their shape.
class FunctionLayer : public Layer {
 public:
  using Function = Variable (*)(const Variable&, Pass&);
  explicit FunctionLayer(Function function) : function_(function) {}

 protected:
  Shape build(const Shape& input) override { return input; }
  Variable compute(const Variable& x, Pass& pass) override { return function_(x, pass); }

 private:
  Function function_;
};

/// Probabilities along a dimension of the sample, counted as PyTorch does: 0 is the batch, which it
/// may not be, and -1 the last.
class Softmax : public Layer {
 public:
  explicit Softmax(int dim) : dim_(dim) {}

 protected:
  Shape build(const Shape& input) override;
  Variable compute(const Variable& x, Pass& pass) override {
    return functions::softmax(x, dim_, pass);
  }

 private:
  int dim_;
};

/// Zeroes values with probability p in training and scales the others by 1/(1 - p) (Srivastava et
/// al. 2014).
class DropoutLayer : public Layer {
 public:
  /// `samples`: zeroes whole samples; at the end of a residual's layers, the block is left out
  /// (stochastic depth: Huang et al. 2016, arXiv 1603.09382).
  explicit DropoutLayer(double p, bool samples = false) : p_(p), samples_(samples) {}

 protected:
  Shape build(const Shape& input) override { return input; }
  Variable compute(const Variable& x, Pass& pass) override {
    return samples_ ? functions::stochastic_depth(x, p_, pass) : functions::dropout(x, p_, pass);
  }

 private:
  double p_;
  bool samples_;
};

/// The largest value, the mean or the blur (Pooling::kBlur) of every window, per channel: {H, W, C}
/// → {P, Q, C}. Sizes round down, as in PyTorch by default.
class Pool2d : public Layer {
 public:
  Pool2d(Pooling kind, const Window2d& window) : kind_(kind), window_(window) {}

 protected:
  Shape build(const Shape& input) override;
  Variable compute(const Variable& x, Pass& pass) override;

 private:
  Pooling kind_;
  Window2d window_;
};

/// Images of another size: `scale_factor` times as large.
class Upsample : public Layer {
 public:
  Upsample(double scale_factor, Resampling mode) : scale_factor_(scale_factor), mode_(mode) {}

 protected:
  Shape build(const Shape& input) override;
  Variable compute(const Variable& x, Pass& pass) override {
    return functions::upsample(x, scale_factor_, mode_, pass);
  }

 private:
  double scale_factor_;
  Resampling mode_;
};

/// {H, W, C} → {P, Q, C}: each pixel is the mean of those that it covers.
class AdaptiveAvgPool2d : public Layer {
 public:
  explicit AdaptiveAvgPool2d(const std::array<std::int64_t, 2>& size) : size_(size) {}

 protected:
  Shape build(const Shape& input) override;
  Variable compute(const Variable& x, Pass& pass) override {
    return functions::adaptive_avg_pool2d(x, size_, pass);
  }

 private:
  std::array<std::int64_t, 2> size_;
};

/// {H, W, C} → {C}: the mean over all pixels.
class GlobalAvgPool : public Layer {
 protected:
  Shape build(const Shape& input) override;
  Variable compute(const Variable& x, Pass& pass) override {
    return functions::mean(x, {1, 2}, false, pass);
  }
};

/// Any shape → {elements}. Images are flattened in PyTorch's order C, H, W, so that weights of a
/// following linear layer are compatible.
class Flatten : public Layer {
 protected:
  Shape build(const Shape& input) override { return {input.elements()}; }
  Variable compute(const Variable& x, Pass& pass) override { return functions::flatten(x, pass); }
};

}  // namespace starling
