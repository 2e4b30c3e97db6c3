#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "core/operations/code.h"

// Codes of 8 and 4 bits. Computed in fp32 without fused multiply-add, so that sender and receiver
// decode the same bits. A code has `of(least, most)`, which makes a block's code from its range;
// `head`, its parameters as floats, sent with the block; encode and decode, whose codes are the low
// kBits of a byte. Of 4 bits two are in a byte, the first in its low half.
namespace starling::math {

STARLING_HD float round_to_even(float x) {
#if defined(__CUDA_ARCH__)
  return rintf(x);
#else
  return __builtin_rintf(x);
#endif
}

/// Values q·s with s = max|x| / kMost (0 if all are 0), where kMost is 127 or 7. A block with a NaN
/// or infinity becomes NaN, with all codes.
template <int kBitsEach>
struct SymmetricCode {
  static constexpr int kHead = 1, kBits = kBitsEach, kMost = (1 << (kBits - 1)) - 1;
  float scale;

  STARLING_HD static SymmetricCode of(float least, float most) {
    return {(-least > most ? -least : most) / static_cast<float>(kMost)};
  }
  STARLING_HD static SymmetricCode from(const float* head) { return {head[0]}; }
  STARLING_HD void put(float* head) const { head[0] = scale; }
  STARLING_HD std::uint8_t encode(float x) const {
    constexpr float kLimit = kMost;
    float q = round_to_even(x / scale);
    q = q > -kLimit ? q : -kLimit;  // also for NaN
    q = q < kLimit ? q : kLimit;
    q = scale == 0.0f ? 0.0f : q;
    return static_cast<std::uint8_t>(static_cast<std::int32_t>(q) & ((1 << kBits) - 1));
  }
  STARLING_HD float decode(std::uint8_t q) const {
    constexpr int kSign = 1 << (kBits - 1);
    return static_cast<float>((q ^ kSign) - kSign) * scale;
  }
};
using Int8Code = SymmetricCode<8>;
using Int4Code = SymmetricCode<4>;

/// Bagua's codec (Gan et al. 2021, arXiv 2107.01499), clamped: 256 levels from minimum to maximum.
struct MinMax8Code {
  static constexpr int kHead = 2, kBits = 8;
  float scale;  ///< codes a unit
  float lower;  ///< the value of code 0, in codes
  float upper;  ///< the maximum, in codes; for encode()

  STARLING_HD static MinMax8Code of(float least, float most) {
    const float scale = 255.0f / (most - least + 1e-7f);
    const float upper = round_to_even(most * scale);
    return {scale, upper - 255.0f, upper};
  }
  STARLING_HD static MinMax8Code from(const float* head) { return {head[0], head[1], 0.0f}; }
  STARLING_HD void put(float* head) const { head[0] = scale, head[1] = lower; }
  STARLING_HD std::uint8_t encode(float x) const {
    const float level = round_to_even(x * scale);
    float q = (level < upper ? level : upper) - lower;
    q = q > 0.0f ? q : 0.0f;
    q = q < 255.0f ? q : 255.0f;
    return static_cast<std::uint8_t>(static_cast<std::int32_t>(q));
  }
  STARLING_HD float decode(std::uint8_t q) const { return (static_cast<float>(q) + lower) / scale; }
};

/// Four levels from -s to s, s = max|x|: of a sparse message's numbers, which are none of the small
/// ones.
struct FourLevelCode {
  static constexpr int kBits = 2;
  float scale;

  STARLING_HD static FourLevelCode of(float least, float most) {
    return {-least > most ? -least : most};
  }
  STARLING_HD static FourLevelCode from(const float* head) { return {head[0]}; }
  STARLING_HD std::uint8_t encode(float x) const {
    float q = round_to_even((x / scale + 1.0f) * 1.5f);
    q = q > 0.0f ? q : 0.0f;  // also for NaN
    q = q < 3.0f ? q : 3.0f;
    return static_cast<std::uint8_t>(static_cast<std::int32_t>(q));
  }
  STARLING_HD float decode(std::uint8_t q) const {
    if (scale == 0.0f) return 0.0f;
    return (static_cast<float>(q) / 1.5f - 1.0f) * scale;
  }
};

/// Place i of a sparse message's block, of 12 or 16 bits.
STARLING_HD std::int32_t place_at(const std::uint8_t* places, bool wide, std::int64_t i) {
  if (wide) return places[2 * i] | places[2 * i + 1] << 8;
  const std::uint8_t* pair = places + i / 2 * 3;
  return i % 2 == 0 ? pair[0] | (pair[1] & 15) << 8 : pair[1] >> 4 | pair[2] << 4;
}
STARLING_HD std::int64_t place_bytes(bool wide, std::int64_t count) {
  return (count * (wide ? 16 : 12) + 7) / 8;
}

/// Calls f(code) with an empty code of a sparse message's values.
template <class F>
[[gnu::always_inline]] inline void with_value_code(int bits, F&& f) {
  if (bits == 8) {
    f(Int8Code{});
  } else if (bits == 4) {
    f(Int4Code{});
  } else {
    f(FourLevelCode{});
  }
}

/// Calls f(code) with an empty code of the kind, which is of 8 or 4 bits.
template <class F>
[[gnu::always_inline]] inline void with_code(Code kind, F&& f) {
  if (kind == Code::kMinMax8) {
    f(MinMax8Code{});
  } else if (kind == Code::kInt4) {
    f(Int4Code{});
  } else {
    f(Int8Code{});
  }
}

/// Code i of a message.
template <class Kind>
STARLING_HD std::uint8_t code_at(const std::uint8_t* codes, std::int64_t i) {
  if constexpr (Kind::kBits == 8) return codes[i];
  constexpr int kEach = 8 / Kind::kBits;
  return static_cast<std::uint8_t>(codes[i / kEach] >> i % kEach * Kind::kBits &
                                   ((1 << Kind::kBits) - 1));
}

}  // namespace starling::math
