#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "core/dtype.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/math/codec.h"

// Decodes messages (core/operations/codecs.h, Code), a few numbers at a time, for the decode
// operation and for the fused update. A message has n codes, followed by the parameters of each
// block as floats.
namespace starling::cuda::detail {

/// An unsigned integer of this size; compilers copy a struct of bytes byte by byte.
template <int kBytes>
using Word = std::conditional_t<
    kBytes == 1, std::uint8_t,
    std::conditional_t<kBytes == 2, std::uint16_t,
                       std::conditional_t<kBytes == 4, std::uint32_t, std::uint64_t>>>;

/// 2 or 4 codes of kBits each, as one word, the first of them lowest; the address is a multiple of
/// its size.
template <int kBits, int kCount, class Bits>
__device__ __forceinline__ void load_codes(const std::uint8_t* from, Bits (&to)[kCount]) {
  const auto word = *reinterpret_cast<const Word<kCount * kBits / 8>*>(from);
#pragma unroll
  for (int k = 0; k < kCount; ++k)
    to[k] = static_cast<Bits>(word >> (kBits * k) & ((1u << kBits) - 1));
}
template <int kBits, int kCount, class Bits>
__device__ __forceinline__ void store_codes(const Bits (&from)[kCount], std::uint8_t* to) {
  using W = Word<kCount * kBits / 8>;
  W word = 0;
#pragma unroll
  for (int k = 0; k < kCount; ++k)
    word = static_cast<W>(word | static_cast<W>(from[k]) << (kBits * k));
  *reinterpret_cast<W*>(to) = word;
}

/// sum += weight · elements from i on, all in the same block, number `block`; i is a multiple of
/// kCount.
template <class Kind>
struct CodedMessage {
  template <class T, int kCount>
  __device__ static void add(const std::uint8_t* message, std::int64_t n, std::int64_t i,
                             std::int64_t block, T weight, T (&sum)[kCount]) {
    const Kind code = Kind::from(reinterpret_cast<const float*>(message + n * Kind::kBits / 8) +
                                 block * Kind::kHead);
    std::uint8_t codes[kCount];
    load_codes<Kind::kBits>(message + i * Kind::kBits / 8, codes);
#pragma unroll
    for (int k = 0; k < kCount; ++k) sum[k] += weight * static_cast<T>(code.decode(codes[k]));
  }
};
struct HalfMessage {
  template <class T, int kCount>
  __device__ static void add(const std::uint8_t* message, std::int64_t, std::int64_t i,
                             std::int64_t, T weight, T (&sum)[kCount]) {
    std::uint16_t bits[kCount];
    load_codes<16>(message + i * 2, bits);
#pragma unroll
    for (int k = 0; k < kCount; ++k)
      sum[k] += weight * static_cast<T>(widen(std::bit_cast<BFloat16>(bits[k])));
  }
};
struct WholeMessage {
  template <class T, int kCount>
  __device__ static void add(const std::uint8_t* message, std::int64_t, std::int64_t i,
                             std::int64_t, T weight, T (&sum)[kCount]) {
    T value[kCount];
    load<kCount>(reinterpret_cast<const T*>(message) + i, value);
#pragma unroll
    for (int k = 0; k < kCount; ++k) sum[k] += weight * value[k];
  }
};

}  // namespace starling::cuda::detail
