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
  return static_cast<Compute<T>>(value);
}
/// Rounds to nearest even.
template <class T>
STARLING_HD T narrow(Compute<T> value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    // BFloat16's own arithmetic in the order that makes the fewest vector instructions.
    const auto bits = __builtin_bit_cast(std::uint32_t, value);
    const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    T result;
    result.bits = static_cast<std::uint16_t>((__builtin_isnan(value) ? bits | 0x400000u : rounded) >> 16);
    return result;
  } else {
    return static_cast<T>(value);
  }
}

}  // namespace starling::cpu
