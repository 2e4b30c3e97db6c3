#pragma once

#include <array>

#include "core/operations/convolutions.h"
#include "core/operations/pointwise.h"
#include "layers/functions.h"
#include "layers/layer.h"

// Layers without parameters. Flatten and the poolings need images; the others accept any shape.
namespace starling {

/// An elementwise function.
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

/// A function whose result has the shape of its input.
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

/// Softmax along a dimension, numbered as in PyTorch: 0 is the batch, which is not allowed, -1 the
/// last.
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
  /// `samples`: zeroes whole samples; at the end of a residual's body this skips the block
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

/// Pooling over windows per channel, maximum, mean or blur (Pooling::kBlur): {H, W, C} → {P, Q, C}.
/// Sizes are rounded down, as by default in PyTorch.
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

/// Images resized by `scale_factor`.
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

/// {H, W, C} → {P, Q, C}: each pixel is the mean of the pixels that it covers.
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
