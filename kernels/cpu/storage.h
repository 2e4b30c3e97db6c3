#pragma once

#include <cstdint>
#include <type_traits>

#include "core/dtype.h"
#include "core/host_device.h"

// Kernels read and write numbers of a storage type T and compute in Compute<T>.
namespace starling::cpu {

template <class T>
constexpr bool kIsLow = sizeof(T) == 2;

template <class T>
STARLING_HD Compute<T> widen(T value) {
  if constexpr (std::is_same_v<T, Float16>) {
    // Float16's own conversion without branches: loops with many of those take the compiler long,
    // and vectorise worse.
    constexpr std::uint32_t kBias = 112u << 23, kExponent = 31u << 23;
    const auto bits = static_cast<std::uint32_t>(value.bits), shifted = (bits & 0x7fffu) << 13,
               exponent = shifted & kExponent;
    // The smallest of the normal numbers, 2^-14.
    const float smallest = __builtin_bit_cast(float, kBias + (1u << 23));
    const float subnormal = __builtin_bit_cast(float, shifted + kBias + (1u << 23)) - smallest;
    const std::uint32_t normal = shifted + (exponent == kExponent ? 2 * kBias : kBias);
    const std::uint32_t magnitude =
        exponent == 0 ? __builtin_bit_cast(std::uint32_t, subnormal) : normal;
    return __builtin_bit_cast(float, magnitude | (bits & 0x8000u) << 16);
  } else {
    return static_cast<Compute<T>>(value);
  }
}
/// Rounds to nearest even.
template <class T>
STARLING_HD T narrow(Compute<T> value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    // BFloat16's own arithmetic in the order that makes the fewest vector instructions.
    const auto bits = __builtin_bit_cast(std::uint32_t, value);
    const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    T result;
    result.bits =
        static_cast<std::uint16_t>((__builtin_isnan(value) ? bits | 0x400000u : rounded) >> 16);
    return result;
  } else {
    return static_cast<T>(value);
  }
}

}  // namespace starling::cpu
