#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "core/autograd.h"
#include "core/operations/differentiate.h"
#include "layers/functions.h"

// Chains of pointwise functions, evaluated lazily. A function of values that are not computed yet
// is appended to their expression, and one pass over memory computes all of it; another pass
// computes the gradients. A chain is evaluated when its value is read, when another step does not
// fit, or when the next function has a larger shape, which would repeat its computation.
namespace starling::functions {

/// A pointwise function of one or two operands, at least one of which is a value. Error(kUsage),
/// starting with `name`, if shapes do not broadcast or dtypes differ.
Variable pointwise(std::string_view name, MapFunction function, const Operand& a, const Operand& b,
                   Pass& pass);
inline Variable pointwise(std::string_view name, MapFunction function, const Variable& x,
                          Pass& pass) {
  return pointwise(name, function, x, x, pass);
}

/// The sum over dimensions of an unevaluated chain, times `factor`, in one pass forward and one
/// backward; none if x is not an unevaluated chain, or it does not fit. `kept`: the result's shape
/// with size 1 for reduced dimensions.
std::optional<Variable> sum_of_chain(std::string_view name, const Variable& x, const Shape& kept,
                                     const Shape& result, double factor, Pass& pass);

/// If x is the sum of two values of its shape that is not computed yet, has `add` compute it: a + b
/// into `sum`. So an operation that reads x computes it on the way.
bool compute_sum(
    const Variable& x,
    const std::function<void(const Tensor& a, const Tensor& b, const Tensor& sum)>& add);

/// x broadcast to a shape.
Tensor repeated(const Tensor& x, const Shape& shape, Backend& backend);

/// Memory for a gradient of dy's shape: dy itself if it has no other holder, so that operations may
/// work in place; otherwise new memory.
inline Tensor own_gradient_memory(const Tensor& dy) {
  // The caller's handle is one; only a term held by the pass alone may be overwritten.
  return dy.exclusive() ? dy : Tensor(dy.backend(), dy.shape(), dy.dtype());
}

}  // namespace starling::functions
