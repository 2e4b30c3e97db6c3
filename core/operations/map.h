#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "core/operations/accesses.h"
#include "core/operations/map_function.h"
#include "core/tensor.h"

// A small expression of each place's numbers, over broadcast operands, in one pass over memory.
namespace starling {

/// The program of a Map or a Reduce. Its places are those of the shape that the tensors broadcast
/// to, as NumPy's do; the number at a place is the last step's result there. The tensors are of one
/// dtype, or fp32 beside bf16 or fp16.
struct Expression {
  std::array<Tensor, kMapTensors> in{};  ///< as many from the first on as the steps need
  std::array<MapStep, kMapMostSteps> steps{};
  int count = 0;  ///< of steps
  std::array<double, kMapMostNumbers> numbers{};

  Expression() = default;
  Expression(std::initializer_list<MapStep> program, std::initializer_list<Tensor> operands,
             std::initializer_list<double> constants = {});

  /// The number of tensors that there are.
  std::size_t tensors() const;
  /// The shape that the tensors broadcast to. Error(kInternal) where they do not.
  Shape places() const;
};

/// y = the expression's number at each place. The tensors broadcast to y's shape, and have y's
/// dtype, or are fp32 where y is bf16 or fp16. Arithmetic is fp32's for those, and the result is
/// rounded once. y may be a tensor of its shape.
struct Map : Expression {
  Tensor y;
  /// Results of steps before the last, in tensors of y's shape and dtype, that the same pass
  /// writes: as many from the first on as have a tensor. With one, no tensor that is written may be
  /// read.
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

/// Where an expression's tensors and its result lie: the places' dimensions, with as few as
/// possible, and each tensor's strides along them, in elements, 0 where it is repeated.
struct MapLayout {
  int rank = 1;
  std::array<std::int64_t, Shape::kMaxRank> size{};
  /// The last are the result's: 0 where a Reduce adds up.
  std::array<std::array<std::int64_t, Shape::kMaxRank>, kMapTensors + 1> stride{};
  /// One dimension, along which every tensor is as long as the result and of its dtype
  bool plain = true;

  bool reduced(std::size_t d) const { return stride[kMapTensors][d] == 0; }
};
MapLayout layout_of(const Expression& expression, const Shape& places, const Tensor& result);
/// The same of operands that have these shapes; `plain` stays true.
MapLayout layout_of(std::span<const Shape> operands, const Shape& places, const Shape& result);

class Checker;
/// Checks the steps, and that the tensors have a dtype that goes with `dtype`, or with fp32.
void check_program(const Checker& call, const Expression& expression, DType dtype);

}  // namespace starling
