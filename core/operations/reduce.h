#pragma once

#include <cstdint>

#include "core/operations/map.h"

// Reductions of an expression of broadcast operands.
namespace starling {

/// y = factor · the sum of the expression, or its maximum or minimum (NaN if any element is), over
/// the dimensions that y lacks or where it has size 1: y broadcasts to the expression's shape.
/// Without steps the expression is its first tensor. Partial sums of few elements are in the
/// arithmetic type, further sums in fp64, in an order that depends on sizes only. The arithmetic
/// type is fp64 if y is fp64, with operands of any dtype; otherwise fp32, where bf16 and fp16
/// operands require a y of their dtype or fp32.
struct Reduce : Expression {
  Tensor y;
  Reduction by = Reduction::kSum;
  double factor = 1.0;      ///< for sums, e.g. to get the mean
  bool accumulate = false;  ///< for sums: adds to y

  Reduce() = default;
  /// The sum of a tensor.
  Reduce(const Tensor& x, const Tensor& result, bool adds = false)
      : Expression({}, {x}), y(result), accumulate(adds) {}
  Reduce(std::initializer_list<MapStep> program, std::initializer_list<Tensor> operands,
         const Tensor& result, std::initializer_list<double> constants = {})
      : Expression(program, operands, constants), y(result) {}

  /// totals[index], in fp64, += Σ (x - y)²; y optional: the squared norm.
  static Reduce squared_distance(const Tensor& x, const Tensor& y, const Tensor& totals,
                                 std::int64_t index);

  Accesses accesses() const;
};

/// Whether a Reduce is the sum of squares of a tensor in fp64, for which backends have a special
/// loop.
bool sums_squares(const Reduce& args);

}  // namespace starling
