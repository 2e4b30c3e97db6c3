#pragma once

#include <functional>
#include <memory>
#include <utility>

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

/// A function of the layer's input, and the shape that it makes of a sample's.
class FunctionLayer final : public Layer {
 public:
  using Function = std::function<Variable(const Variable&, Pass&)>;
  /// Without one the shape stays. May call bad_shape().
  using Sizes = std::function<Shape(const FunctionLayer&, const Shape&)>;
  explicit FunctionLayer(Function function, Sizes sizes = {})
      : function_(std::move(function)), sizes_(std::move(sizes)) {}
  using Layer::bad_shape;

 protected:
  Shape build(const Shape& input) override { return sizes_ ? sizes_(*this, input) : input; }
  Variable compute(const Variable& x, Pass& pass) override { return function_(x, pass); }

 private:
  Function function_;
  Sizes sizes_;
};

/// Zeroes values with probability p in training and scales the others by 1/(1 - p) (Srivastava et
/// al. 2014).
std::unique_ptr<Layer> dropout_layer(double p);
/// {H, W, C} → {C}: the mean over all pixels.
std::unique_ptr<Layer> global_avg_pool();
/// Any shape → {elements}. Images are flattened in PyTorch's order C, H, W, so that weights of a
/// following linear layer are compatible.
std::unique_ptr<Layer> flatten_layer();

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

}  // namespace starling
