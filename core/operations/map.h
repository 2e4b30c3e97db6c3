#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "core/operations/accesses.h"
#include "core/operations/map_function.h"
#include "core/tensor.h"

// Fused elementwise expressions of broadcast operands, in one pass over memory.
namespace starling {

/// The program of a Map or a Reduce: evaluated for each element of the shape that the tensors
/// broadcast to (as in NumPy); its value is the last step's result. The tensors have the same
/// dtype; some may be fp32 if others are bf16 or fp16.
struct Expression {
  std::array<Tensor, kMapTensors> in{};  ///< the first ones are used
  std::array<MapStep, kMapMostSteps> steps{};
  int count = 0;  ///< of steps
  std::array<double, kMapMostNumbers> numbers{};

  Expression() = default;
  Expression(std::initializer_list<MapStep> program, std::initializer_list<Tensor> operands,
             std::initializer_list<double> constants = {});

  /// The number of tensors.
  std::size_t tensors() const;
  /// The shape that the tensors broadcast to. Error(kInternal) if they do not.
  Shape places() const;
};

/// y = the expression, elementwise. The tensors broadcast to y's shape, and have y's dtype, or fp32
/// if y is bf16 or fp16. Those are computed in fp32 and rounded once. y may be a tensor of y's
/// shape.
struct Map : Expression {
  Tensor y;
  /// Additional outputs: results of earlier steps, in tensors of y's shape and dtype. With any, no
  /// output may alias an input.
  struct Also {
    Tensor y;
    std::uint8_t slot = 0;
  };
  std::array<Also, kMapOutputs - 1> also{};

  Map() = default;
  /// One function of one or two tensors.
  Map(MapFunction function, const Tensor& a, const Tensor& result)
      : Map({{function}}, {a}, result) {}
  Map(MapFunction function, const Tensor& a, const Tensor& b, const Tensor& result)
      : Map({{function}}, {a, b}, result) {}
  Map(std::initializer_list<MapStep> program, std::initializer_list<Tensor> operands,
      const Tensor& result, std::initializer_list<double> constants = {})
      : Expression(program, operands, constants), y(result) {}

  Accesses accesses() const;
};

/// The broadcast of an expression: its dimensions, as few as possible, and the strides of each
/// tensor along them, in elements; 0 where it is repeated.
struct MapLayout {
  int rank = 1;
  std::array<std::int64_t, Shape::kMaxRank> size{};
  /// The last is the result's: 0 along dimensions that a Reduce sums over.
  std::array<std::array<std::int64_t, Shape::kMaxRank>, kMapTensors + 1> stride{};
  /// There is no broadcast: all tensors have the result's size and dtype
  bool plain = true;

  bool reduced(std::size_t d) const { return stride[kMapTensors][d] == 0; }
};
MapLayout layout_of(const Expression& expression, const Shape& places, const Tensor& result);
/// The same for operands of these shapes; `plain` is not set.
MapLayout layout_of(std::span<const Shape> operands, const Shape& places, const Shape& result);

class Checker;
/// Checks the steps, and that the tensors' dtypes can be combined with `dtype`.
void check_program(const Checker& call, const Expression& expression, DType dtype);

}  // namespace starling
