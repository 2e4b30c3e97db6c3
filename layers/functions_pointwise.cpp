#include "core/error.h"
#include "core/operations/map.h"
#include "core/operations/pointwise.h"
#include "core/operations/reduce.h"
#include "layers/functions.h"

namespace starling::functions {

namespace {

/// The gradient of the output, or new memory of its shape where somebody else holds it too: for
/// operations that may write in place.
Tensor own_gradient_memory(const Tensor& dy) {
  // One handle is here, the caller's; a term that only the pass holds may be overwritten.
  return dy.exclusive() ? dy : Tensor(dy.backend(), dy.shape(), dy.dtype());
}

}  // namespace

MapFunction function_of(Activation kind) {
  constexpr MapFunction kFunctions[] = {MapFunction::kRelu, MapFunction::kGelu, MapFunction::kSilu,
                                        MapFunction::kRelu6};
  return kFunctions[static_cast<int>(kind) - 1];
}
MapFunction gradient_of(Activation kind) {
  constexpr MapFunction kGradients[] = {MapFunction::kReluGradient, MapFunction::kGeluGradient,
                                        MapFunction::kSiluGradient, MapFunction::kRelu6Gradient};
  return kGradients[static_cast<int>(kind) - 1];
}

Variable activation(const Variable& x, Activation kind, Pass& pass) {
  if (kind == Activation::kNone) return x;
  Tensor y(pass.backend, x.shape(), x.dtype());
  pass.backend.map({function_of(kind), x.value(), y});
  // The gradients of ReLU and ReLU6 need only the output, which the next operation keeps anyway.
  const bool from_output = kind == Activation::kRelu || kind == Activation::kRelu6;
  auto backward = [kind, saved = from_output ? y : x.value()](Gradients& g) {
    const Tensor dy = std::move(g.take_terms().front());
    Tensor dx = own_gradient_memory(dy);
    g.backend().map({gradient_of(kind), saved, dy, dx});
    g.set(0, std::move(dx));
  };
  return pass.record("activation", y, {x}, {}, std::move(backward));
}

Variable add(const Variable& a, const Variable& b, Pass& pass) {
  require(a.shape() == b.shape(), "add", "the terms are {} and {}", a.shape().text(),
          b.shape().text());
  Tensor y(pass.backend, a.shape(), a.dtype());
  pass.backend.map({MapFunction::kAdd, a.value(), b.value(), y});
  return pass.record("add", std::move(y), {a, b}, {}, [](Gradients& g) {
    const Tensor dy = std::move(g.take_terms().front());
    g.set(0, dy);
    g.set(1, dy);
  });
}

Variable scaled(const Variable& x, double factor, Pass& pass) {
  Tensor y(pass.backend, x.shape(), x.dtype());
  pass.backend.map({{{MapFunction::kMultiply, 0, kMapNumbers}}, {x.value()}, y, {factor}});
  return pass.record("scaled", std::move(y), {x}, {}, [factor](Gradients& g) {
    const Tensor dy = std::move(g.take_terms().front());
    Tensor dx = own_gradient_memory(dy);
    g.backend().map({{{MapFunction::kMultiply, 0, kMapNumbers}}, {dy}, dx, {factor}});
    g.set(0, std::move(dx));
  });
}

Variable layer_scale(const Variable& x, Parameter& scale, const Variable& residual, Pass& pass) {
  Tensor y(pass.backend, x.shape(), x.dtype());
  const Tensor factor = scale.value;
  const bool has_residual = residual.has_value();
  if (has_residual) {
    pass.backend.map({{{MapFunction::kMultiply}, {MapFunction::kAdd, kMapResults, 2}},
                      {x.value(), factor, residual.value()},
                      y});
  } else {
    pass.backend.map({MapFunction::kMultiply, x.value(), factor, y});
  }
  auto backward = [saved = x.value(), factor, has_residual](Gradients& g) {
    const Tensor dy = std::move(g.take_terms().front());
    if (has_residual && g.wants(1)) g.set(1, dy);
    if (const Gradients::Target target = g.parameter(0)) {
      Reduce products({{MapFunction::kMultiply}}, {dy, saved}, target.tensor);
      products.accumulate = target.accumulate;
      g.backend().reduce(products);
    }
    Tensor dx = own_gradient_memory(dy);
    g.backend().map({MapFunction::kMultiply, dy, factor, dx});
    g.set(0, std::move(dx));
  };
  if (has_residual)
    return pass.record("layer_scale", std::move(y), {x, residual}, {&scale}, std::move(backward));
  return pass.record("layer_scale", std::move(y), {x}, {&scale}, std::move(backward));
}

Variable dropout(const Variable& x, double p, Pass& pass, std::int64_t run) {
  if (!pass.training || p <= 0.0) return x;
  Dropout args{.x = x.value(),
               .y = Tensor(pass.backend, x.shape(), x.dtype()),
               .p = p,
               .key = pass.dropout_key,
               .counter = pass.dropout_counter++,
               .run = run};
  pass.backend.dropout(args);
  auto backward = [p, run, key = args.key, counter = args.counter](Gradients& g) {
    const Tensor dy = std::move(g.take_terms().front());
    Tensor dx = own_gradient_memory(dy);
    g.backend().dropout({.x = dy, .y = dx, .p = p, .key = key, .counter = counter, .run = run});
    g.set(0, std::move(dx));
  };
  return pass.record("dropout", std::move(args.y), {x}, {}, std::move(backward));
}

Variable stochastic_depth(const Variable& x, double p, Pass& pass) {
  return dropout(x, p, pass, x.shape().elements() / x.shape()[0]);
}

}  // namespace starling::functions
