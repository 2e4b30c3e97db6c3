#pragma once

#include <cstdint>

#include "core/host_device.h"

// Numbers in 8 bits: what sender and receiver compute alike, in fp32 and without fused
// multiply-add, so that both decode the same bits. A code has `of(least, most)`, what a block's
// numbers say of it; `head`, that as a few floats, which travel with the block; encode, decode.
namespace starling::math {

STARLING_HD float round_to_even(float x) {
#if defined(__CUDA_ARCH__)
  return rintf(x);
#else
  return __builtin_rintf(x);
#endif
}

/// Codes q that stand for q·s, with s = max|x| / 127. Where s is 0 all numbers are. A block that
/// holds NaN or an infinity becomes NaN, as does one of the other code.
struct Int8Code {
  static constexpr int kHead = 1;
  float scale;

  STARLING_HD static Int8Code of(float least, float most) {
    return {(-least > most ? -least : most) / 127.0f};
  }
  STARLING_HD static Int8Code from(const float* head) { return {head[0]}; }
  STARLING_HD void put(float* head) const { head[0] = scale; }
  STARLING_HD std::uint8_t encode(float x) const {
    float q = round_to_even(x / scale);
    q = q > -127.0f ? q : -127.0f;  // of what is no number too
    q = q < 127.0f ? q : 127.0f;
    q = scale == 0.0f ? 0.0f : q;
    return static_cast<std::uint8_t>(static_cast<std::int32_t>(q));
  }
  STARLING_HD float decode(std::uint8_t q) const {
    return static_cast<float>(static_cast<std::int8_t>(q)) * scale;
  }
};

/// Bagua's (Gan et al. 2021, arXiv 2107.01499, its codec in clamped form): 256 steps from the least
/// to the largest number.
struct MinMax8Code {
  static constexpr int kHead = 2;
  float scale;  ///< codes a unit
  float lower;  ///< what code 0 stands for, in codes
  float upper;  ///< the largest number, in codes; for encode()

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

/// Calls f(code) with an empty Int8Code or MinMax8Code.
template <class F>
[[gnu::always_inline]] inline void with_code(bool min_max, F&& f) {
  if (min_max) {
    f(MinMax8Code{});
  } else {
    f(Int8Code{});
  }
}

}  // namespace starling::math
