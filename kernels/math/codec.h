#pragma once

#include <cstdint>

#include "core/host_device.h"

// 8-bit codes. Computed in fp32 without fused multiply-add, so that sender and receiver decode the
// same bits. A code has `of(least, most)`, which makes a block's code from its range; `head`, its
// parameters as floats, sent with the block; encode and decode.
namespace starling::math {

STARLING_HD float round_to_even(float x) {
#if defined(__CUDA_ARCH__)
  return rintf(x);
#else
  return __builtin_rintf(x);
#endif
}

/// Values q·s with s = max|x| / 127 (0 if all are 0). A block with a NaN or infinity becomes NaN,
/// with both codes.
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
    q = q > -127.0f ? q : -127.0f;  // also for NaN
    q = q < 127.0f ? q : 127.0f;
    q = scale == 0.0f ? 0.0f : q;
    return static_cast<std::uint8_t>(static_cast<std::int32_t>(q));
  }
  STARLING_HD float decode(std::uint8_t q) const {
    return static_cast<float>(static_cast<std::int8_t>(q)) * scale;
  }
};

/// Bagua's codec (Gan et al. 2021, arXiv 2107.01499), clamped: 256 levels from minimum to maximum.
struct MinMax8Code {
  static constexpr int kHead = 2;
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
