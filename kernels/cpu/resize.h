#pragma once

#include <cstdint>
#include <vector>

#include "kernels/math/resize_pictures.h"

namespace starling::cpu {

/// Pixels of 3 or 4 bytes, of which a window may be looked at.
struct PixelWindow {
  const std::uint8_t* pixels = nullptr;  ///< the window's first
  std::int64_t stride = 0;               ///< bytes from a row to the next
  std::int64_t height = 0, width = 0;
  std::int64_t channels = 4;
};
/// A box in the window's pixels, from the window's corner.
struct PixelBox {
  double top = 0, left = 0, height = 0, width = 0;
};

/// Resizes by Pillow's filters in two passes of integers, rows first. Keeps its memory. The bits
/// are the same on every instruction set, and within one grey level of Pillow's.
class Resizer {
 public:
  /// Writes height × width pixels of as many bytes as the window's have; the fourth is anything.
  void resize(const PixelWindow& window, const PixelBox& box, Interpolation interpolation,
              std::int64_t height, std::int64_t width, std::uint8_t* out);

  /// Numbers that one pass needs: of each output the first input and the weights, in 1/16384 and of
  /// sum 16384.
  struct Taps {
    std::int64_t most = 0;  ///< weights an output, those beyond its last being 0
    std::vector<std::int32_t> first, count;
    std::vector<std::int32_t> weights;  ///< [outputs, most]
  };

 private:
  Taps rows_, columns_;
  std::vector<std::int32_t> column_weights_;  ///< as cpu::ResizeColumns has them
  std::vector<std::int16_t> row_;
};

/// Makes the image, of height × width × 3 bytes, of pixels that a decoder has left: the bits of
/// Backend::resize_pictures, on every instruction set.
void resize_cut(const CutPicture& cut, const std::uint8_t* pixels, std::int64_t height,
                std::int64_t width, std::uint8_t* out);

}  // namespace starling::cpu
