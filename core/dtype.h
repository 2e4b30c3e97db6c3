#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "core/host_device.h"

namespace starling {

enum class DType : std::uint8_t { kFloat32, kFloat64, kBFloat16, kFloat16, kInt64, kInt32, kUInt8 };

/// bfloat16: the upper half of an IEEE float32; rounding is to nearest even, NaN stays NaN.
struct BFloat16 {
  std::uint16_t bits = 0;
  BFloat16() = default;
  STARLING_HD explicit BFloat16(float value) {
#if defined(__CUDA_ARCH__)
    // The same bits in one instruction, except for a NaN's payload
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    const auto u = std::bit_cast<std::uint32_t>(value);
    bits = (u & 0x7fffffffu) > 0x7f800000u
               ? static_cast<std::uint16_t>((u >> 16) | 0x40u)
               : static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
#endif
  }
  STARLING_HD explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

/// IEEE float16 (binary16); conversion rounds to nearest even and keeps subnormals, infinities and
/// NaN.
struct Float16 {
  std::uint16_t bits = 0;
  Float16() = default;
  STARLING_HD explicit Float16(float value) {
#if defined(__CUDA_ARCH__)
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    const auto u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (u >> 16) & 0x8000u;
    const std::uint32_t magnitude = u & 0x7fffffffu;
    std::uint32_t result;
    if (magnitude > 0x7f800000u) {
      result = 0x7e00u;  // NaN
    } else if (magnitude >= 0x477ff000u) {
      result = 0x7c00u;  // 65520 and above round to infinity
    } else if (magnitude >= 0x38800000u) {
      result = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;  // normal
    } else if (magnitude >= 0x33000000u) {
      const std::uint32_t shift = 126u - (magnitude >> 23);  // subnormal: 14 … 24
      const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
      const std::uint32_t half = 1u << (shift - 1u);
      const std::uint32_t rest = mantissa & ((1u << shift) - 1u);
      result = mantissa >> shift;
      if (rest > half || (rest == half && (result & 1u))) ++result;
    } else {
      result = 0;
    }
    bits = static_cast<std::uint16_t>(sign | result);
#endif
  }
  STARLING_HD explicit operator float() const {
#if defined(__CUDA_ARCH__)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#else
    const std::uint32_t sign = (bits & 0x8000u) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1fu;
    const std::uint32_t mantissa = bits & 0x3ffu;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
    if (exponent != 0)
      return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
    const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-08f;  // 2^-24
    return sign ? -magnitude : magnitude;
#endif
  }
};

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64: return 8;
    case DType::kFloat32:
    case DType::kInt32: return 4;
    case DType::kBFloat16:
    case DType::kFloat16: return 2;
    case DType::kUInt8: return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return "fp32";
    case DType::kFloat64: return "fp64";
    case DType::kBFloat16: return "bf16";
    case DType::kFloat16: return "fp16";
    case DType::kInt64: return "int64";
    case DType::kInt32: return "int32";
    case DType::kUInt8: return "uint8";
  }
  return "?";
}

constexpr bool is_floating(DType dtype) { return dtype <= DType::kFloat16; }
/// True for bf16 and fp16, the formats of activations and products with fp32 master weights.
constexpr bool is_low_precision(DType dtype) {
  return dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::kFloat32> {};
template <>
struct DTypeOf<double> : std::integral_constant<DType, DType::kFloat64> {};
template <>
struct DTypeOf<BFloat16> : std::integral_constant<DType, DType::kBFloat16> {};
template <>
struct DTypeOf<Float16> : std::integral_constant<DType, DType::kFloat16> {};
template <>
struct DTypeOf<std::int64_t> : std::integral_constant<DType, DType::kInt64> {};
template <>
struct DTypeOf<std::int32_t> : std::integral_constant<DType, DType::kInt32> {};
template <>
struct DTypeOf<std::uint8_t> : std::integral_constant<DType, DType::kUInt8> {};

/// The type for arithmetic on numbers stored as T: fp32 for bf16 and fp16, otherwise T.
template <class T>
struct ComputeOf {
  using type = T;
};
template <>
struct ComputeOf<BFloat16> {
  using type = float;
};
template <>
struct ComputeOf<Float16> {
  using type = float;
};
template <class T>
using Compute = typename ComputeOf<T>::type;

}  // namespace starling
