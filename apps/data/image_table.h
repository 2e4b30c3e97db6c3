#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "apps/data/augment.h"
#include "apps/data/dataset.h"
#include "kernels/math/pixel.h"

namespace starling {

/// Turns one uint8 image into normalised numbers, cropped, flipped and erased; the same bits as
/// Backend::augment_images. A byte has 256 values, so each channel's results are a table. T: float,
/// double, BFloat16 or Float16.
template <class T>
class ImageTable {
 public:
  /// `erased`: what boxes put in an image's place, by box.
  ImageTable(const Shape& image, const PixelScale& scale, std::int64_t crop_padding,
             const std::vector<double>& erased = {})
      : height_(image[0]), width_(image[1]), channels_(image[2]), padding_(crop_padding) {
    for (const double value : erased)
      erased_.push_back(T(static_cast<std::conditional_t<sizeof(T) == 8, double, float>>(value)));
    for (std::size_t c = 0; c < static_cast<std::size_t>(channels_); ++c) {
      for (std::size_t v = 0; v < 256; ++v)
        table_[c][v] = pixel(static_cast<std::uint8_t>(v), scale.mean[c], scale.std[c]);
    }
  }

  /// Writes the H×W×C numbers of `image`: its window at (offset - padding), zeros around the image,
  /// mirrored where flip is set, then boxes.
  void write(const std::uint8_t* image, const Augmentation& augmentation,
             std::span<const ErasedBox> boxes, T* out) const {
    for (std::int64_t y = 0; y < height_; ++y, out += width_ * channels_)
      write_row(image, augmentation, boxes, y, out);
  }

  /// Row y alone, of W×C numbers.
  void write_row(const std::uint8_t* image, const Augmentation& augmentation,
                 std::span<const ErasedBox> boxes, std::int64_t y, T* out) const {
    const std::int64_t shift_y = augmentation.offset_y - padding_,
                       shift_x = augmentation.offset_x - padding_, from_y = y + shift_y;
    // Columns of the window that lie inside the image.
    const std::int64_t begin = std::clamp<std::int64_t>(-shift_x, 0, width_),
                       end = std::clamp(width_ - shift_x, begin, width_);
    const bool inside = from_y >= 0 && from_y < height_;
    const std::uint8_t* from =
        image + ((inside ? from_y : 0) * width_ + begin + shift_x) * channels_;
    if (!inside) {
      fill(out, 0, width_);
    } else if (augmentation.flip) {
      fill(out, 0, width_ - end);
      convert_mirrored(from, end - begin, out + (width_ - end) * channels_);
      fill(out, width_ - begin, width_);
    } else {
      fill(out, 0, begin);
      convert(from, end - begin, out + begin * channels_);
      fill(out, end, width_);
    }
    for (std::size_t k = 0; k < boxes.size(); ++k) {
      const ErasedBox& box = boxes[k];
      if (y < box.top || y >= box.bottom) continue;
      std::fill(out + box.left * channels_, out + box.right * channels_, erased_[k]);
    }
  }

 private:
  static T pixel(std::uint8_t value, double mean, double deviation) {
    if constexpr (sizeof(T) == 8) {
      return math::normalized_pixel<double>(value, mean, deviation);
    } else {
      return T(math::normalized_pixel<float>(value, mean, deviation));
    }
  }

  void fill(T* row, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t x = begin; x < end; ++x) {
      for (std::int64_t c = 0; c < channels_; ++c)
        row[x * channels_ + c] = table_[static_cast<std::size_t>(c)][0];
    }
  }

  void convert(const std::uint8_t* from, std::int64_t pixels, T* out) const {
    const auto& [first, second, third, fourth] = table_;
    if (channels_ == 3) {
      for (std::int64_t i = 0; i < pixels; ++i) {
        out[3 * i] = first[from[3 * i]];
        out[3 * i + 1] = second[from[3 * i + 1]];
        out[3 * i + 2] = third[from[3 * i + 2]];
      }
    } else if (channels_ == 1) {
      for (std::int64_t i = 0; i < pixels; ++i) out[i] = first[from[i]];
    } else {
      for (std::int64_t i = 0; i < pixels * channels_; ++i)
        out[i] = table_[static_cast<std::size_t>(i % channels_)][from[i]];
    }
  }

  void convert_mirrored(const std::uint8_t* from, std::int64_t pixels, T* out) const {
    const auto& [first, second, third, fourth] = table_;
    const std::uint8_t* last = from + (pixels - 1) * channels_;
    if (channels_ == 3) {
      for (std::int64_t i = 0; i < pixels; ++i) {
        out[3 * i] = first[last[-3 * i]];
        out[3 * i + 1] = second[last[1 - 3 * i]];
        out[3 * i + 2] = third[last[2 - 3 * i]];
      }
    } else if (channels_ == 1) {
      for (std::int64_t i = 0; i < pixels; ++i) out[i] = first[last[-i]];
    } else {
      for (std::int64_t i = 0; i < pixels; ++i)
        convert(last - i * channels_, 1, out + i * channels_);
    }
  }

  std::int64_t height_, width_, channels_, padding_;
  std::array<std::array<T, 256>, 4> table_{};
  std::vector<T> erased_;
};

}  // namespace starling
