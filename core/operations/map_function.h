#pragma once

#include <cstdint>

// The functions of maps and reductions. Nothing here but constants: the files that are compiled for
// each instruction set include it.
namespace starling {

/// The functions that a step may be: X(name, operands, value). The value is of a and b, numbers of
/// the type T that arithmetic runs in. Comparisons give 1 or 0. Of a gradient, a is the function's
/// input, or its output where that is said, and b the gradient of its output. A new function is a
/// line here, one in differentiate() (core/operations/differentiate.cpp) if it has a gradient, and
/// more for users (CONTRIBUTING.md).
#define STARLING_MAP_FUNCTIONS(X)                                         \
  X(kAdd, 2, a + b)                                                       \
  X(kSubtract, 2, a - b)                                                  \
  X(kMultiply, 2, a* b)                                                   \
  X(kDivide, 2, a / b)                                                    \
  X(kPower, 2, math::power(a, b))                                         \
  X(kMaximum, 2, (a > b) | (a != a) ? a : b)                              \
  X(kMinimum, 2, (a < b) | (a != a) ? a : b)                              \
  X(kEqual, 2, a == b ? T(1) : T(0))                                      \
  X(kNotEqual, 2, a != b ? T(1) : T(0))                                   \
  X(kLess, 2, a < b ? T(1) : T(0))                                        \
  X(kLessEqual, 2, a <= b ? T(1) : T(0))                                  \
  /* a where b is not 0, and a where it is */                             \
  X(kWhere, 2, b != T(0) ? a : T(0))                                      \
  X(kWhereNot, 2, b != T(0) ? T(0) : a)                                   \
  /* max and min whose gradients are whole at the limit */                \
  X(kClampLow, 2, (a > b) | (a != a) ? a : b)                             \
  X(kClampHigh, 2, (a < b) | (a != a) ? a : b)                            \
  X(kAbs, 1, math::absolute(a))                                           \
  X(kSign, 1, a > T(0) ? T(1) : a < T(0) ? T(-1) : a * T(0))              \
  X(kSquare, 1, a* a)                                                     \
  X(kExp, 1, math::exponential(a))                                        \
  X(kLog, 1, math::logarithm(a))                                          \
  X(kLog1p, 1, math::logarithm1p(a))                                      \
  X(kSqrt, 1, math::square_root(a))                                       \
  X(kRsqrt, 1, T(1) / math::square_root(a))                               \
  X(kSin, 1, math::sine(a))                                               \
  X(kCos, 1, math::cosine(a))                                             \
  X(kTanh, 1, math::tangent(a))                                           \
  X(kSigmoid, 1, math::sigmoid(a))                                        \
  X(kSoftplus, 1, math::softplus(a))                                      \
  X(kErf, 1, math::error_function(a))                                     \
  X(kRelu, 1, math::relu(a))                                              \
  X(kRelu6, 1, math::relu6(a))                                            \
  X(kGelu, 1, math::gelu(a))                                              \
  X(kGeluTanh, 1, math::gelu_tanh(a))                                     \
  X(kSilu, 1, math::silu(a))                                              \
  X(kReluGradient, 2, a > T(0) ? b : T(0))                                \
  X(kRelu6Gradient, 2, (a > T(0)) & (a < T(6)) ? b : T(0))                \
  X(kGeluGradient, 2, b* math::gelu_derivative(a))                        \
  X(kGeluTanhGradient, 2, b* math::gelu_tanh_derivative(a))               \
  X(kSiluGradient, 2, b* math::silu_derivative(a))                        \
  X(kErfGradient, 2, b* math::erf_derivative(a))                          \
  /* of the outputs */                                                    \
  X(kTanhGradient, 2, b*(T(1) - a * a))                                   \
  X(kSigmoidGradient, 2, b* a*(T(1) - a))                                 \
  X(kSqrtGradient, 2, b*(T(0.5) / a))                                     \
  X(kRsqrtGradient, 2, T(-0.5) * b * a * a * a)                           \
  /* d aᵇ/da and d aᵇ/db; a's share of max(a, b)'s gradient; -a·b */ \
  X(kPowerSlope, 2, math::power_slope(a, b))                              \
  X(kPowerLog, 2, math::power_log(a, b))                                  \
  X(kShare, 2, a > b ? T(1) : a == b ? T(0.5) : T(0))                     \
  X(kNegativeProduct, 2, -(a * b))

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

/// What a Reduce makes of its numbers.
enum class Reduction : std::uint8_t { kSum, kLargest, kLeast };

/// One step of a program. Its operands are slots: tensors first, then numbers, then the results of
/// the steps before it.
struct MapStep {
  MapFunction function = MapFunction::kAdd;
  std::uint8_t a = 0, b = 1;
};
/// Slots of a step's operands: number i is kMapNumbers + i, step i's result kMapResults + i.
inline constexpr int kMapTensors = 8, kMapNumbers = kMapTensors, kMapMostNumbers = 8,
                     kMapResults = kMapNumbers + kMapMostNumbers, kMapMostSteps = 32,
                     kMapSlots = kMapResults + kMapMostSteps;
/// Tensors that one pass writes, at most.
inline constexpr int kMapOutputs = 4;

}  // namespace starling
