#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace starling::cpu {

/// Loops of apps/pictures/pixels.h. Pixels of colours have 3 bytes. Factors are in 1/2^14, results
/// are rounded down and clamped to a byte.
struct PixelKernels {
  /// v = factor · v + add, the sum in 1/2^14.
  void (*scale)(std::uint8_t* bytes, std::int64_t n, std::int32_t factor, std::int32_t add);
  /// v = factor · v + (1 - factor) · the pixel's grey.
  void (*blend_grey)(std::uint8_t* bytes, std::int64_t pixels, std::int32_t factor);
  /// Σ of the pixels' greys.
  std::int64_t (*grey_sum)(const std::uint8_t* bytes, std::int64_t pixels);
  /// One row but for its first and last pixel: v = factor · v + (1 - factor) · the mean of its 3×3
  /// neighbours, itself counted 5 times. `row` is the row's old bytes, n = width · channels.
  void (*sharpen)(const std::uint8_t* above, const std::uint8_t* row, const std::uint8_t* below,
                  std::int64_t n, std::int64_t channels, std::int32_t factor, std::uint8_t* out);
  /// Turns the hue by `sixths` of a circle, 0 <= sixths < 6.
  void (*turn_hue)(std::uint8_t* bytes, std::int64_t pixels, float sixths);
  /// v = 255 - v from `threshold` on, then v &= mask. A threshold of 256 inverts nothing.
  void (*invert_and_mask)(std::uint8_t* bytes, std::int64_t n, std::int32_t threshold,
                          std::int32_t mask);
};

/// The copy for this processor.
const PixelKernels& pixel_kernels();

}  // namespace starling::cpu
