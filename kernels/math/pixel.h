#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace starling::math {

/// (v/255 - mean)/deviation: a pixel as the model takes it. The loader and every backend's augment_images share it, for equal bits. T:
/// float or double.
template <class T>
STARLING_HD T normalized_pixel(std::uint8_t value, double mean, double deviation) {
  return (static_cast<T>(value) / static_cast<T>(255) - static_cast<T>(mean)) / static_cast<T>(deviation);
}

}  // namespace starling::math
