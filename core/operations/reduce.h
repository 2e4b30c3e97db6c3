#pragma once

#include <cstdint>

#include "core/operations/map.h"

// An expression of broadcast operands, added up.
namespace starling {

/// y = factor · the sum of the expression's numbers over the dimensions along which y has one place
/// or none, or the largest or least of them, NaN where one is: y broadcasts to the expression's
/// places, and its gradients' shapes are those of what was broadcast. Without steps the expression
/// is its first tensor. Sums of few numbers gather in the type of arithmetic, and go on in fp64, in
/// an order that depends on the sizes alone. Arithmetic is fp64's where y is fp64, whose operands
/// have any type, and otherwise fp32's; bf16 and fp16 operands go with a y of their type or fp32.
struct Reduce : Expression {
  Tensor y;
  Reduction by = Reduction::kSum;
  double factor = 1.0;      ///< of sums: a share makes it the mean
  bool accumulate = false;  ///< of sums: adds to y

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

/// Whether a Reduce adds up the squares of a tensor in fp64: what backends have a loop of its own
/// for.
bool sums_squares(const Reduce& args);

}  // namespace starling
