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

/// (v/255 - mean)/deviation: a pixel as the model takes it. The loader and every backend's augment_images share it, for equal bits. T:
/// float or double.
template <class T>
STARLING_HD T normalized_pixel(std::uint8_t value, double mean, double deviation) {
  return (static_cast<T>(value) / static_cast<T>(255) - static_cast<T>(mean)) / static_cast<T>(deviation);
}

}  // namespace math
}  // namespace starling
