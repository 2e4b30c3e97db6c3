#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "core/autograd.h"
#include "core/operations/differentiate.h"
#include "layers/functions.h"

// Chains of pointwise functions. A function of values that are not computed yet joins what they are
// made of, and one pass over memory computes all; another one goes back. A chain ends where its
// value is read, where a step has no room in it, or where the next function has a larger shape, in
// which its numbers would be computed over and over.
namespace starling::functions {

/// A pointwise function of one or two operands, of which one at least is a value. Error(kUsage),
/// which begins with the name, where shapes do not broadcast or dtypes differ.
Variable pointwise(std::string_view name, MapFunction function, const Operand& a, const Operand& b,
                   Pass& pass);
inline Variable pointwise(std::string_view name, MapFunction function, const Variable& x,
                          Pass& pass) {
  return pointwise(name, function, x, x, pass);
}

/// The sum over dimensions of a chain that nothing has computed yet, times `factor`, as one pass
/// over what it is made of, and one back; none where x is none, or where there is no room. `kept`
/// is the result's shape with 1 for dimensions that go.
std::optional<Variable> sum_of_chain(std::string_view name, const Variable& x, const Shape& kept,
                                     const Shape& result, double factor, Pass& pass);

/// The numbers repeated to a shape that x broadcasts to.
Tensor repeated(const Tensor& x, const Shape& shape, Backend& backend);

/// A gradient term, or new memory of its shape where somebody else holds it too: for operations
/// that may write in place.
inline Tensor own_gradient_memory(const Tensor& dy) {
  // One handle is here, the caller's; a term that only the pass holds may be overwritten.
  return dy.exclusive() ? dy : Tensor(dy.backend(), dy.shape(), dy.dtype());
}

}  // namespace starling::functions
