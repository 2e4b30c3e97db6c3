#pragma once

#include <array>
#include <cstdint>

#include "core/host_device.h"

namespace starling {

/// How bytes become numbers: (v / 255 - mean) / std, per channel.
struct PixelScale {
  std::array<double, 4> mean{}, std{};
  friend bool operator==(const PixelScale&, const PixelScale&) = default;
};

namespace math {

/// (v/255 - mean)/deviation: a pixel as the model takes it. Every backend's augment_images shares
/// it, for equal bits. T: float or double.
template <class T>
STARLING_HD T normalized_pixel(std::uint8_t value, double mean, double deviation) {
  return (static_cast<T>(value) / static_cast<T>(255) - static_cast<T>(mean)) /
         static_cast<T>(deviation);
}

/// Mixes own·a + (1 - own)·b; a or b as it is where own is 1 or 0.
template <class T>
STARLING_HD T mixed_pixel(T own, T a, T b) {
  return own == T(1) ? a : own == T(0) ? b : own * a + (T(1) - own) * b;
}

/// Whether the pixel (h, w) lies in the rectangle (top, left, bottom, right).
template <class Size>
STARLING_HD bool in_box(const std::int32_t* box, Size h, Size w) {
  return h >= box[0] && h < box[2] && w >= box[1] && w < box[3];
}

constexpr std::int32_t kWholeShare = 1 << 24;  ///< AugmentImages::mix of an image that is its own

/// How much of the pixel (h, w) is its own image's, by AugmentImages::mix. Exact, and so is 1 less
/// that.
template <class T, class Size>
STARLING_HD T own_share(const std::int32_t* mix, Size h, Size w) {
  return in_box(mix + 1, h, w) ? T(0) : static_cast<T>(mix[0]) / static_cast<T>(kWholeShare);
}

}  // namespace math
}  // namespace starling
