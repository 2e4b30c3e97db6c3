#pragma once

#include <cstdint>

// The functions of a Map. Nothing here but constants: the files that are compiled for each
// instruction set include it.
namespace starling {

/// The functions that a step may be: X(name, operands, value). The value is of a and b, numbers of
/// the type T that arithmetic runs in. Of a gradient, a is the function's input (of ReLU and ReLU6
/// the output will do) and b the gradient of its output. A new function is a line here.
#define STARLING_MAP_FUNCTIONS(X)                          \
  X(kAdd, 2, a + b)                                        \
  X(kSubtract, 2, a - b)                                   \
  X(kMultiply, 2, a* b)                                    \
  X(kMaximum, 2, (a > b) | (a != a) ? a : b)               \
  X(kMinimum, 2, (a < b) | (a != a) ? a : b)               \
  X(kSquare, 1, a* a)                                      \
  X(kRelu, 1, math::relu(a))                               \
  X(kRelu6, 1, math::relu6(a))                             \
  X(kGelu, 1, math::gelu(a))                               \
  X(kSilu, 1, math::silu(a))                               \
  X(kReluGradient, 2, a > T(0) ? b : T(0))                 \
  X(kRelu6Gradient, 2, (a > T(0)) & (a < T(6)) ? b : T(0)) \
  X(kGeluGradient, 2, b* math::gelu_derivative(a))         \
  X(kSiluGradient, 2, b* math::silu_derivative(a))

#define STARLING_MAP_NAME(name, operands, value) name,
enum class MapFunction : std::uint8_t { STARLING_MAP_FUNCTIONS(STARLING_MAP_NAME) };
#undef STARLING_MAP_NAME
/// Number of the function's operands, one or two.
constexpr int operands_of(MapFunction function) {
#define STARLING_MAP_OPERANDS(name, operands, value) operands,
  constexpr int kOperands[] = {STARLING_MAP_FUNCTIONS(STARLING_MAP_OPERANDS)};
#undef STARLING_MAP_OPERANDS
  return kOperands[static_cast<int>(function)];
}

/// One step of a program. Its operands are slots: tensors first, then numbers, then the results of
/// the steps before it.
struct MapStep {
  MapFunction function = MapFunction::kAdd;
  std::uint8_t a = 0, b = 1;
};
/// Slots of a step's operands: number i is kMapNumbers + i, step i's result kMapResults + i.
inline constexpr int kMapTensors = 8, kMapNumbers = kMapTensors, kMapMostNumbers = 4,
                     kMapResults = kMapNumbers + kMapMostNumbers, kMapMostSteps = 8,
                     kMapSlots = kMapResults + kMapMostSteps;

}  // namespace starling
