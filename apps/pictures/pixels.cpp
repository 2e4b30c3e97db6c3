#include "apps/pictures/pixels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "apps/pictures/pixel_kernels.h"
#include "apps/pictures/resize.h"
#include "core/error.h"

STARLING_DECLARE_PER_ISA(const PixelKernels& pixels_copy();)

namespace starling {

const cpu::PixelKernels& cpu::pixel_kernels() {
  static const PixelKernels& chosen =
      select_isa(detected_isa(), scalar::pixels_copy(), avx2::pixels_copy(), avx512::pixels_copy());
  return chosen;
}

namespace {

constexpr std::int64_t kUnit = 1 << 16;  ///< of PixelChange::kTransform

/// A copy of the image to read from while it is written.
const std::uint8_t* kept(const ImageBytes& image) {
  thread_local std::vector<std::uint8_t> bytes;
  bytes.assign(image.bytes, image.bytes + image.size());
  return bytes.data();
}

/// A table for each channel.
void look_up(const ImageBytes& image, const std::uint8_t (&tables)[4][256]) {
  with_channels(image.channels, [&]<int kChannels>() {
    std::uint8_t* bytes = image.bytes;
    for (std::int64_t i = 0; i < image.height * image.width; ++i, bytes += kChannels) {
      for (int c = 0; c < kChannels; ++c) bytes[c] = tables[c][bytes[c]];
    }
  });
}

/// ImageBytes of a row from columns [first, first + count) of another, mirrored or not; `step` is 1
/// or -1.
template <int kChannels>
void copy_pixels(const std::uint8_t* from, std::int64_t first, std::int64_t step,
                 std::int64_t count, std::uint8_t* to) {
  if (step == 1) {
    std::memcpy(to, from + first * kChannels, static_cast<std::size_t>(count * kChannels));
    return;
  }
  const std::uint8_t* pixel = from + first * kChannels;
  for (std::int64_t x = 0; x < count; ++x, pixel -= kChannels, to += kChannels) {
    for (int c = 0; c < kChannels; ++c) to[c] = pixel[c];
  }
}

template <int kChannels>
void take_window(const ImageBytes& image, std::int64_t top, std::int64_t left, bool flip,
                 bool reflect) {
  const std::uint8_t* old = kept(image);
  const std::int64_t width = image.width, row_bytes = width * kChannels;
  // Columns of the window, before it is mirrored, that lie inside the image.
  const std::int64_t begin = std::clamp<std::int64_t>(-left, 0, width),
                     end = std::clamp(width - left, begin, width);
  for (std::int64_t y = 0; y < image.height; ++y) {
    std::uint8_t* row = image.bytes + y * row_bytes;
    std::int64_t from_y = y + top;
    if (reflect) from_y = math::reflected(from_y, image.height);
    if (from_y < 0 || from_y >= image.height) {
      std::memset(row, 0, static_cast<std::size_t>(row_bytes));
      continue;
    }
    const std::uint8_t* from = old + from_y * row_bytes;
    if (end > begin) {
      if (flip) {
        copy_pixels<kChannels>(from, end - 1 + left, -1, end - begin,
                               row + (width - end) * kChannels);
      } else {
        copy_pixels<kChannels>(from, begin + left, 1, end - begin, row + begin * kChannels);
      }
    }
    const auto outside = [&](std::int64_t x) {
      std::uint8_t* to = row + (flip ? width - 1 - x : x) * kChannels;
      const std::uint8_t* shown = from + math::reflected(x + left, width) * kChannels;
      for (int c = 0; c < kChannels; ++c) to[c] = reflect ? shown[c] : std::uint8_t{0};
    };
    for (std::int64_t x = 0; x < begin; ++x) outside(x);
    for (std::int64_t x = end; x < width; ++x) outside(x);
  }
}

template <int kChannels>
void transform(const ImageBytes& image, const std::int32_t* numbers) {
  const std::int64_t xx = numbers[0], xy = numbers[1], yx = numbers[2], yy = numbers[3];
  std::int64_t row_x = math::joined(numbers + 4), row_y = math::joined(numbers + 6);
  const std::int64_t height = image.height, width = image.width, row_bytes = width * kChannels;
  const std::uint8_t* old = kept(image);
  for (std::int64_t y = 0; y < height; ++y, row_x += xy, row_y += yy) {
    std::uint8_t* to = image.bytes + y * row_bytes;
    if (xx == kUnit && yx == 0) {  // a row is moved as a whole
      const std::int64_t shift = row_x >> 16, from_y = row_y >> 16;
      const std::int64_t begin = std::clamp<std::int64_t>(-shift, 0, width),
                         end = std::clamp(width - shift, begin, width);
      std::memset(to, 0, static_cast<std::size_t>(row_bytes));
      if (from_y >= 0 && from_y < height && end > begin) {
        copy_pixels<kChannels>(old + from_y * row_bytes, begin + shift, 1, end - begin,
                               to + begin * kChannels);
      }
      continue;
    }
    std::int64_t at_x = row_x, at_y = row_y;
    for (std::int64_t x = 0; x < width; ++x, at_x += xx, at_y += yx, to += kChannels) {
      const std::int64_t from_x = at_x >> 16, from_y = at_y >> 16;
      const bool inside = static_cast<std::uint64_t>(from_x) < static_cast<std::uint64_t>(width) &&
                          static_cast<std::uint64_t>(from_y) < static_cast<std::uint64_t>(height);
      const std::uint8_t* from = old + (inside ? (from_y * width + from_x) * kChannels : 0);
      for (int c = 0; c < kChannels; ++c) to[c] = inside ? from[c] : std::uint8_t{0};
    }
  }
}

void adjust_contrast(const ImageBytes& image, std::int32_t factor) {
  const std::int64_t pixels = image.height * image.width;
  std::int64_t sum = 0;
  if (image.channels == 3) {
    sum = cpu::pixel_kernels().grey_sum(image.bytes, pixels);
  } else {
    for (std::int64_t i = 0; i < image.size(); ++i) sum += image.bytes[i];
  }
  const std::int32_t add =
      math::contrast_add(factor, sum, image.channels == 3 ? pixels : image.size());
  cpu::pixel_kernels().scale(image.bytes, image.size(), factor, add);
}

void adjust_sharpness(const ImageBytes& image, std::int32_t factor) {
  if (image.height <= 2 || image.width <= 2) return;
  const std::uint8_t* old = kept(image);
  const std::int64_t n = image.width * image.channels;
  for (std::int64_t y = 1; y < image.height - 1; ++y) {
    const std::uint8_t* row = old + y * n;
    cpu::pixel_kernels().sharpen(row - n, row, row + n, n, image.channels, factor,
                                 image.bytes + y * n);
  }
}

void autocontrast(const ImageBytes& image) {
  std::uint8_t least[4] = {255, 255, 255, 255}, most[4] = {};
  const auto channels = static_cast<std::size_t>(image.channels);
  for (const std::uint8_t* pixel = image.bytes; pixel != image.bytes + image.size();
       pixel += channels) {
    for (std::size_t c = 0; c < channels; ++c) {
      least[c] = std::min(least[c], pixel[c]);
      most[c] = std::max(most[c], pixel[c]);
    }
  }
  std::uint8_t tables[4][256];
  for (std::size_t c = 0; c < channels; ++c) {
    for (int v = 0; v < 256; ++v)
      tables[c][v] = static_cast<std::uint8_t>(math::stretched_byte(v, least[c], most[c]));
  }
  look_up(image, tables);
}

void equalize(const ImageBytes& image) {
  std::uint32_t counts[4][256] = {};
  const auto channels = static_cast<std::size_t>(image.channels);
  for (const std::uint8_t* pixel = image.bytes; pixel != image.bytes + image.size();
       pixel += channels) {
    for (std::size_t c = 0; c < channels; ++c) ++counts[c][pixel[c]];
  }
  std::uint8_t tables[4][256];
  for (std::size_t c = 0; c < channels; ++c)
    math::even_levels(counts[c], image.height * image.width, tables[c]);
  look_up(image, tables);
}

void enlarge(const ImageBytes& image, const std::int32_t* part) {
  thread_local std::vector<std::uint8_t> pixels, resized;
  thread_local Resizer resizer;
  // Channels that the resizer takes
  const std::int64_t depth = image.channels, taken = depth == 3 ? 3 : 4;
  const std::uint8_t* from = image.bytes;
  resized.resize(static_cast<std::size_t>(taken * image.height * image.width));
  if (depth < 3) {
    pixels.resize(resized.size());
    for (std::int64_t i = 0; i < image.height * image.width; ++i)
      std::copy_n(image.bytes + depth * i, depth, pixels.data() + 4 * i);
    from = pixels.data();
  }
  const PixelWindow window{from + taken * (part[0] * image.width + part[1]), taken * image.width,
                           part[2], part[3], taken};
  const PixelBox box{0, 0, static_cast<double>(part[2]), static_cast<double>(part[3])};
  resizer.resize(window, box, static_cast<Interpolation>(part[4]), image.height, image.width,
                 resized.data());
  if (depth == taken) {
    std::copy(resized.begin(), resized.end(), image.bytes);
    return;
  }
  for (std::int64_t i = 0; i < image.height * image.width; ++i)
    std::copy_n(resized.data() + taken * i, depth, image.bytes + depth * i);
}

}  // namespace

void check_step(std::int64_t channels, std::int64_t height, std::int64_t width,
                const PixelStep& step) {
  require(channels >= 1 && channels <= 4, "pixels", "an image of {} channels; 1 to 4 are possible",
          channels);
  const std::int32_t* part = step.numbers;
  require(step.change != PixelChange::kResize || math::part_fits(part, height, width), "pixels",
          "a part of {}×{} at ({}, {}) of an image of {}×{}; it must lie inside", part[2], part[3],
          part[0], part[1], height, width);
}

void change_pixels(const ImageBytes& image, const PixelStep& step) {
  check_step(image.channels, image.height, image.width, step);
  const std::int32_t* n = step.numbers;
  const cpu::PixelKernels& kernels = cpu::pixel_kernels();
  const std::int64_t pixels = image.height * image.width;
  switch (step.change) {
    case PixelChange::kNone: return;
    case PixelChange::kWindow:
      return with_channels(image.channels, [&]<int kChannels>() {
        take_window<kChannels>(image, n[0], n[1], n[2] != 0, n[3] != 0);
      });
    case PixelChange::kTransform:
      return with_channels(image.channels,
                           [&]<int kChannels>() { transform<kChannels>(image, n); });
    case PixelChange::kResize: return enlarge(image, n);
    case PixelChange::kScale: return kernels.scale(image.bytes, image.size(), n[0], 0);
    case PixelChange::kContrast: return adjust_contrast(image, n[0]);
    case PixelChange::kSaturation:
      if (image.channels == 3) kernels.blend_grey(image.bytes, pixels, n[0]);
      return;
    case PixelChange::kHue:
      if (image.channels == 3) kernels.turn_hue(image.bytes, pixels, std::bit_cast<float>(n[0]));
      return;
    case PixelChange::kSharpness: return adjust_sharpness(image, n[0]);
    case PixelChange::kInvert:
      return kernels.invert_and_mask(image.bytes, image.size(), n[0], n[1]);
    case PixelChange::kAutoContrast: return autocontrast(image);
    case PixelChange::kEqualize: return equalize(image);
  }
}

PixelMap PixelMap::rotate(double degrees, std::int64_t height, std::int64_t width) {
  const double angle = degrees * std::numbers::pi / 180.0, cosine = std::cos(angle),
               sine = std::sin(angle);
  const double x = 0.5 * static_cast<double>(width), y = 0.5 * static_cast<double>(height);
  return {cosine, -sine, x - cosine * x + sine * y, sine, cosine, y - sine * x - cosine * y};
}

namespace pixel_steps {
namespace {

/// A factor in fixed point, at most 256: there every byte above 0 is 255 anyway, and products stay
/// within 32 bits.
std::int32_t fixed_factor(double factor) {
  return static_cast<std::int32_t>(
      std::lround(std::clamp(factor, 0.0, 256.0) * (1 << math::kBlendBits)));
}
std::int32_t number(std::int64_t value) { return static_cast<std::int32_t>(value); }

}  // namespace

PixelStep brightness(double factor) { return {PixelChange::kScale, {fixed_factor(factor)}}; }
PixelStep contrast(double factor) { return {PixelChange::kContrast, {fixed_factor(factor)}}; }
PixelStep saturation(double factor) { return {PixelChange::kSaturation, {fixed_factor(factor)}}; }
PixelStep hue(double turn) {
  const auto sixths = static_cast<float>(6.0 * (turn < 0.0 ? turn + 1.0 : turn));
  return {PixelChange::kHue, {std::bit_cast<std::int32_t>(sixths < 6.0F ? sixths : 0.0F)}};
}
PixelStep sharpness(double factor) { return {PixelChange::kSharpness, {fixed_factor(factor)}}; }
PixelStep posterize(int bits) {
  return {PixelChange::kInvert, {256, 0xFF00 >> std::clamp(bits, 0, 8) & 0xFF}};
}
PixelStep solarize(double threshold) {
  return {PixelChange::kInvert,
          {static_cast<std::int32_t>(std::ceil(std::clamp(threshold, 0.0, 256.0))), 255}};
}
PixelStep autocontrast() { return {PixelChange::kAutoContrast}; }
PixelStep equalize() { return {PixelChange::kEqualize}; }

PixelStep transform(const PixelMap& map) {
  const auto fixed = [](double value) {
    return static_cast<std::int64_t>(std::floor(value * kUnit + 0.5));
  };
  const std::int64_t x = fixed(map.x0 + 0.5 * (map.xx + map.xy)),
                     y = fixed(map.y0 + 0.5 * (map.yx + map.yy));
  return {PixelChange::kTransform,
          {number(fixed(map.xx)), number(fixed(map.xy)), number(fixed(map.yx)),
           number(fixed(map.yy)), number(x), number(x >> 32), number(y), number(y >> 32)}};
}

PixelStep window(std::int64_t top, std::int64_t left, bool flip, bool reflect) {
  return {PixelChange::kWindow, {number(top), number(left), flip ? 1 : 0, reflect ? 1 : 0}};
}

PixelStep resize(std::int64_t top, std::int64_t left, std::int64_t height, std::int64_t width,
                 Interpolation interpolation) {
  return {PixelChange::kResize,
          {number(top), number(left), number(height), number(width),
           static_cast<std::int32_t>(interpolation)}};
}

}  // namespace pixel_steps
}  // namespace starling
