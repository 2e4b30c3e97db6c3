#include <utility>

#include "core/error.h"
#include "core/operations/checker.h"
#include "core/operations/map.h"
#include "core/operations/pointwise.h"
#include "core/operations/reduce.h"
#include "layers/functions.h"
#include "layers/functions_chain.h"

namespace starling::functions {

namespace {

MapFunction function_of(Activation kind) {
  switch (kind) {
    case Activation::kRelu: return MapFunction::kRelu;
    case Activation::kGelu: return MapFunction::kGelu;
    case Activation::kSilu: return MapFunction::kSilu;
    case Activation::kRelu6: return MapFunction::kRelu6;
    case Activation::kNone: break;
  }
  fail(ExitCode::kInternal, "activation", "there is none");
}

}  // namespace

Variable activation(const Variable& x, Activation kind, Pass& pass) {
  if (kind == Activation::kNone) return x;
  // For the result of a layer, whose recomputation would take longer than most of a chain
  const Recompute asked = std::exchange(pass.recompute, Recompute::kNone);
  const Variable y = pointwise("activation", function_of(kind), x, pass);
  pass.recompute = asked;
  return y;
}

// Defines a named function of two operands.
#define STARLING_OF_TWO(name, function)                           \
  Variable name(const Operand& a, const Operand& b, Pass& pass) { \
    return pointwise(#name, MapFunction::function, a, b, pass);   \
  }
#define STARLING_OF_ONE(name, function)                      \
  Variable name(const Variable& x, Pass& pass) {             \
    return pointwise(#name, MapFunction::function, x, pass); \
  }
STARLING_OF_TWO(add, kAdd)
STARLING_OF_TWO(subtract, kSubtract)
STARLING_OF_TWO(multiply, kMultiply)
STARLING_OF_TWO(divide, kDivide)
STARLING_OF_TWO(power, kPower)
STARLING_OF_TWO(maximum, kMaximum)
STARLING_OF_TWO(minimum, kMinimum)
STARLING_OF_TWO(equal, kEqual)
STARLING_OF_TWO(not_equal, kNotEqual)
STARLING_OF_TWO(less, kLess)
STARLING_OF_TWO(less_equal, kLessEqual)
STARLING_OF_ONE(abs, kAbs)
STARLING_OF_ONE(sign, kSign)
STARLING_OF_ONE(square, kSquare)
STARLING_OF_ONE(exp, kExp)
STARLING_OF_ONE(log, kLog)
STARLING_OF_ONE(log1p, kLog1p)
STARLING_OF_ONE(sqrt, kSqrt)
STARLING_OF_ONE(rsqrt, kRsqrt)
STARLING_OF_ONE(sin, kSin)
STARLING_OF_ONE(cos, kCos)
STARLING_OF_ONE(tanh, kTanh)
STARLING_OF_ONE(sigmoid, kSigmoid)
STARLING_OF_ONE(softplus, kSoftplus)
STARLING_OF_ONE(erf, kErf)
STARLING_OF_ONE(relu, kRelu)
STARLING_OF_ONE(silu, kSilu)
#undef STARLING_OF_TWO
#undef STARLING_OF_ONE

Variable greater(const Operand& a, const Operand& b, Pass& pass) {
  return pointwise("greater", MapFunction::kLess, b, a, pass);
}
Variable greater_equal(const Operand& a, const Operand& b, Pass& pass) {
  return pointwise("greater_equal", MapFunction::kLessEqual, b, a, pass);
}
Variable negative(const Variable& x, Pass& pass) {
  return pointwise("negative", MapFunction::kMultiply, x, -1.0, pass);
}
Variable reciprocal(const Variable& x, Pass& pass) {
  return pointwise("reciprocal", MapFunction::kDivide, 1.0, x, pass);
}
Variable gelu(const Variable& x, Pass& pass, GeluForm form) {
  const bool exact = form == GeluForm::kNone;
  return pointwise("gelu", exact ? MapFunction::kGelu : MapFunction::kGeluTanh, x, pass);
}
Variable clamp(const Variable& x, double low, double high, Pass& pass) {
  const Variable raised = pointwise("clamp", MapFunction::kClampLow, x, low, pass);
  return pointwise("clamp", MapFunction::kClampHigh, raised, high, pass);
}
Variable where(const Variable& condition, const Operand& a, const Operand& b, Pass& pass) {
  const Variable chosen = pointwise("where", MapFunction::kWhere, a, condition, pass),
                 other = pointwise("where", MapFunction::kWhereNot, b, condition, pass);
  return pointwise("where", MapFunction::kAdd, chosen, other, pass);
}

Variable parameter(Parameter& weight, Pass& pass) {
  return pass.record("parameter", weight.operand(), {}, {&weight}, [](Gradients& g) {
    const Gradients::Target target = g.parameter(0);
    if (!target) return;
    // A sum over no dimension is a copy, to fp32 if the operand is in low precision.
    g.backend().reduce({g.output(), target.tensor, target.accumulate});
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

namespace {

/// y = x with one factor, 0 or 1/(1 - p), for each `run` adjacent numbers: a dropout applied to
/// ones.
void drop_runs(const Tensor& x, const Dropout& of_ones, std::int64_t run, const Tensor& y) {
  const std::int64_t count = x.elements() / run;
  Dropout factors = of_ones;
  factors.x = factors.y = Tensor(x.backend(), {count, 1}, wide_of(x.dtype()));
  x.backend().fill(factors.x, 1.0);
  x.backend().dropout(factors);
  x.backend().map({{{MapFunction::kMultiply}, {MapFunction::kWhere, kMapResults, 1}},
                   {x.reshaped({count, run}), factors.y},
                   y.reshaped({count, run})});
}

}  // namespace

Variable dropout(const Variable& x, double p, Pass& pass, std::int64_t run) {
  if (!pass.training || p <= 0.0) return x;
  if (run < 1 || x.shape().elements() % run != 0)
    fail(ExitCode::kUsage, "dropout", "runs of {} do not make up {} numbers", run,
         x.shape().elements());
  const Dropout settings{.p = p, .key = pass.dropout_key, .counter = pass.dropout_counter++};
  const auto drop = [settings, run](const Tensor& from, const Tensor& to) {
    Dropout args = settings;
    if (run > 1) return drop_runs(from, args, run, to);
    args.x = from, args.y = to;
    from.backend().dropout(args);
  };
  const Tensor y(pass.backend, x.shape(), x.dtype());
  drop(x.value(), y);
  return pass.record("dropout", y, {x}, {}, [drop](Gradients& g) {
    const Tensor dy = std::move(g.take_terms().front());
    Tensor dx = own_gradient_memory(dy);
    drop(dy, dx);
    g.set(0, std::move(dx));
  });
}

Variable stochastic_depth(const Variable& x, double p, Pass& pass) {
  return dropout(x, p, pass, x.shape().elements() / x.shape()[0]);
}

}  // namespace starling::functions
