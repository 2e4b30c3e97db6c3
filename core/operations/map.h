#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "core/operations/accesses.h"
#include "core/operations/map_function.h"
#include "core/tensor.h"

// A small expression of each place's numbers, over broadcast operands, in one pass over memory.
namespace starling {

/// y = the last step's result, at each place. Every tensor has y's shape, or one that broadcasts to
/// it as NumPy's do, and y's dtype, or fp32 where y is bf16 or fp16. Arithmetic is fp32's for
/// those, and the result is rounded once. y may be a tensor of its shape.
struct Map {
  std::array<Tensor, kMapTensors> in{};  ///< as many from the first on as the steps need
  std::array<MapStep, kMapMostSteps> steps{};
  int count = 0;  ///< of steps
  std::array<double, kMapMostNumbers> numbers{};
  Tensor y;

  Map() = default;
  /// One function of one or two tensors.
  Map(MapFunction function, const Tensor& a, const Tensor& result)
      : Map({{function}}, {a}, result) {}
  Map(MapFunction function, const Tensor& a, const Tensor& b, const Tensor& result)
      : Map({{function}}, {a, b}, result) {}
  Map(std::initializer_list<MapStep> program, std::initializer_list<Tensor> operands,
      const Tensor& result, std::initializer_list<double> constants = {});

  Accesses accesses() const;
};

/// Where a Map's tensors lie: y's dimensions, with as few as possible, and each tensor's strides
/// along them, in elements, 0 where it is repeated.
struct MapLayout {
  int rank = 1;
  std::array<std::int64_t, Shape::kMaxRank> size{};
  std::array<std::array<std::int64_t, Shape::kMaxRank>, kMapTensors> stride{};
  /// One dimension, along which every tensor is as long as y and of its dtype
  bool plain = true;
};
MapLayout layout_of(const Map& map);

}  // namespace starling
