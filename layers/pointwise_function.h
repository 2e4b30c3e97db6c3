#pragma once

#include <memory>
#include <utility>

#include "core/autograd.h"
#include "core/error.h"
#include "core/pointwise_function.h"
#include "layers/layer.h"

// A user-defined pointwise function, from one struct (examples/plugin/squareplus.h):
//
//     struct Squareplus {
//       static constexpr const char* kName = "squareplus";
//       static constexpr const char* kSummary = "(x + √(x² + 4)) / 2";
//       template <class T> STARLING_HD static T value(T x);
//       template <class T> STARLING_HD static T derivative(T x, T y);  // y = value(x)
//     };
//
// Runs as vectorised loops on a CPU, and with a line in a .cu file (STARLING_CUDA_POINTWISE,
// <starling/cuda.h>) as a kernel on a GPU. T is float (for bf16 and fp16 too) or double.
namespace starling {

namespace functions {

/// F of x, with its gradient. Error(kUsage) if x is not floating-point.
template <class F>
Variable pointwise_function(const Variable& x, Pass& pass) {
  if (!is_floating(x.dtype()))
    fail(ExitCode::kUsage, F::kName, "the input is {}; needed: a floating dtype",
         name_of(x.dtype()));
  Tensor y(pass.backend, x.shape(), x.dtype());
  pointwise_operation<F>()(pass.backend, {x.value(), {}, y});
  return pass.record(F::kName, std::move(y), {x}, {}, [x = x.value()](Gradients& g) {
    Tensor dx(g.backend(), x.shape(), x.dtype());
    pointwise_operation<F>()(g.backend(), {x, g.output(), dx});
    g.set(0, std::move(dx));
  });
}

}  // namespace functions

/// Registers the layer {"type": F::kName}.
template <class F>
void add_pointwise_layer() {
  class PointwiseLayer final : public Layer {
   protected:
    Shape build(const Shape& input) override { return input; }
    Variable compute(const Variable& x, Pass& pass) override {
      return functions::pointwise_function<F>(x, pass);
    }
    LayerSupport support() const override {
      return {.devices = pointwise_operation<F>().devices()};
    }
  };
  layers().add(
      F::kName, [](ConfigSection&) { return std::make_unique<PointwiseLayer>(); }, F::kSummary);
}

}  // namespace starling
