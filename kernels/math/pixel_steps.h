#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace starling {

/// A change of an image of H×W×C bytes; in brackets its numbers. Factors are in 1/2^14, and 1
/// leaves the image as it is; results are rounded down and clamped to a byte.
enum class PixelChange : std::int32_t {
  kNone,  ///< nothing: the steps end here
  /// [top, left, mirrored, reflected] the window there, of the image's size; outside of the image
  /// zeros or the image again
  kWindow,
  /// [xx, xy, yx, yy, x, x's upper half, y, y's] the pixel at (x + xx·column + xy·row, y +
  /// yx·column + yy·row) / 2^16
  kTransform,
  /// [top, left, height, width, Interpolation] that part of the image, made as large as the image
  kResize,
  kScale,       ///< [factor] v = factor · v
  kContrast,    ///< [factor] v = factor · v + (1 - factor) · the mean of the image's greys
  kSaturation,  ///< [factor] v = factor · v + (1 - factor) · the pixel's grey; of three channels
  /// [the bits of an fp32] turns the hue by this many sixths of a circle, from 0 to below 6; of
  /// three channels
  kHue,
  /// [factor] v = factor · v + (1 - factor) · the mean around it, itself counted 5 times; the
  /// border stays
  kSharpness,
  kInvert,        ///< [threshold, mask] 255 - v from the threshold on, then the mask's bits alone
  kAutoContrast,  ///< [] stretches each channel to 0 … 255
  kEqualize,      ///< [] evens out each channel's histogram
};

/// One of the changes that an image goes through. A row of ChangePixels::steps.
struct PixelStep {
  static constexpr int kNumbers = 8;
  PixelChange change = PixelChange::kNone;
  std::int32_t numbers[kNumbers] = {};
};

// Changes of pixels: every backend's change_pixels() shares it, for equal bits.
// Integers, but for hues, which are fp32 without fused multiply-add.
namespace math {

constexpr int kBlendBits = 14;  ///< a factor of 1 is 2^14

STARLING_HD std::int32_t byte_of(std::int32_t value) {
  return value < 0 ? 0 : value > 255 ? 255 : value;
}

/// 0.2989 r + 0.587 g + 0.114 b, rounded down (torchvision's rgb_to_grayscale).
STARLING_HD std::int32_t grey_of(std::int32_t r, std::int32_t g, std::int32_t b) {
  return (19589 * r + 38470 * g + 7471 * b) >> 16;
}

/// factor · v + add, the sum in 1/2^14.
STARLING_HD std::int32_t scaled_byte(std::int32_t v, std::int32_t factor, std::int32_t add) {
  return byte_of((factor * v + add) >> kBlendBits);
}

/// factor · v + (1 - factor) · other
STARLING_HD std::int32_t blended_byte(std::int32_t v, std::int32_t other, std::int32_t factor) {
  return scaled_byte(v, factor, ((1 << kBlendBits) - factor) * other);
}

/// Number that contrast adds in scaled_byte(): (1 - factor) · sum / count, rounded half away from
/// zero.
STARLING_HD std::int32_t contrast_add(std::int32_t factor, std::int64_t sum, std::int64_t count) {
  const std::int64_t product = ((1 << kBlendBits) - factor) * sum, half = count / 2;
  return static_cast<std::int32_t>((product < 0 ? product - half : product + half) / count);
}

/// The mean of a pixel's 3×3 neighbours, itself counted 5 times, rounded: (sum + 6) / 13, of sums
/// up to 13 · 255.
STARLING_HD std::int32_t smooth_mean(std::int32_t sum) { return ((sum + 6) * 20165) >> 18; }

STARLING_HD std::int32_t inverted_byte(std::int32_t v, std::int32_t threshold, std::int32_t mask) {
  return (v >= threshold ? 255 - v : v) & mask;
}

/// A byte of a channel whose least and largest are 0 and 255 then.
STARLING_HD std::int32_t stretched_byte(std::int32_t v, std::int32_t least, std::int32_t most) {
  const std::int32_t range = most - least;
  return range == 0 ? v : byte_of((v - least) * 255 / range);
}

/// A byte's level once the histogram is even: `below` pixels are darker, and `step` pixels make a
/// level; of step 0 all stay.
STARLING_HD std::int32_t even_byte(std::int32_t v, std::int64_t below, std::int64_t step) {
  if (step == 0) return v;
  const std::int64_t level = (below + step / 2) / step;
  return static_cast<std::int32_t>(level > 255 ? 255 : level);
}

/// One channel of the hexcone model: of a hue in sixths of a circle, less than 18.
STARLING_HD std::int32_t hexcone(float hue, float most, float chroma) {
  hue = hue >= 6.0F ? hue - 6.0F : hue;
  hue = hue >= 6.0F ? hue - 6.0F : hue;
  float share = hue < 4.0F - hue ? hue : 4.0F - hue;
  share = share < 0.0F ? 0.0F : share > 1.0F ? 1.0F : share;
  return static_cast<std::int32_t>((most - chroma * share) * (255.999F / 255.0F));
}

/// Turns a pixel's hue: to HSV and back. Its hue h is in sixths of a circle, its largest number m,
/// its chroma c. A channel is m - c · clamp(min(k, 4 - k), 0, 1), where k is h + 5, 3 or 1 modulo 6
/// for red, green and blue.
STARLING_HD void turn_hue(std::int32_t& r, std::int32_t& g, std::int32_t& b, float sixths) {
  const std::int32_t more = r > g ? r : g, less = r < g ? r : g;
  const std::int32_t most = more > b ? more : b, least = less < b ? less : b, chroma = most - least;
  const bool red = most == r, green = most == g;
  const std::int32_t difference = red ? g - b : green ? b - r : r - g;
  const float base = red ? 0.0F : green ? 2.0F : 4.0F;
  const float at =
      static_cast<float>(difference) / static_cast<float>(chroma > 0 ? chroma : 1) + base + sixths;
  const auto m = static_cast<float>(most), c = static_cast<float>(chroma);
  r = hexcone(at + 5.0F, m, c);
  g = hexcone(at + 3.0F, m, c);
  b = hexcone(at + 1.0F, m, c);
}

/// The level of each byte, of a channel's histogram `counts` over `pixels` pixels.
STARLING_HD void even_levels(const std::uint32_t* counts, std::int64_t pixels,
                             std::uint8_t* levels) {
  // The last level that occurs does not count: it becomes white by itself.
  int last = 255;
  while (last > 0 && counts[last] == 0) --last;
  const std::int64_t step = (pixels - counts[last]) / 255;
  std::int64_t below = 0;
  for (int v = 0; v < 256; ++v) {
    levels[v] = static_cast<std::uint8_t>(even_byte(v, below, step));
    below += counts[v];
  }
}

/// A number of 64 bits that a step keeps in two halves, the lower first.
STARLING_HD std::int64_t joined(const std::int32_t* halves) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(static_cast<std::uint32_t>(halves[1]))
                                       << 32 |
                                   static_cast<std::uint32_t>(halves[0]));
}

/// Whether a kResize's part lies in an image of that size.
STARLING_HD bool part_fits(const std::int32_t* part, std::int64_t height, std::int64_t width) {
  return part[0] >= 0 && part[1] >= 0 && part[2] > 0 && part[3] > 0 &&
         part[2] <= height - part[0] && part[3] <= width - part[1];
}

/// The place inside [0, size) that a coordinate shows which is mirrored at the outermost pixels;
/// less than one image's size outside.
STARLING_HD std::int64_t reflected(std::int64_t at, std::int64_t size) {
  at = at < 0 ? -at : at >= size ? 2 * size - 2 - at : at;
  return at < 0 ? 0 : at >= size ? size - 1 : at;
}

}  // namespace math

/// Calls run.operator()<channels>(), of 1 to 4.
template <class Run>
void with_channels(std::int64_t channels, const Run& run) {
  switch (channels) {
    case 1: return run.template operator()<1>();
    case 2: return run.template operator()<2>();
    case 3: return run.template operator()<3>();
    default: return run.template operator()<4>();
  }
}

}  // namespace starling
