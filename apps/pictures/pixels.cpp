#include "apps/pictures/pixels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <vector>

#include "core/error.h"
#include "kernels/cpu/pixels.h"

namespace starling {

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
  if (step.change == PixelChange::kNone) return;
  thread_local std::vector<std::uint8_t> before;
  before.assign(image.bytes, image.bytes + image.size());
  static const cpu::Isa isa = cpu::detected_isa();
  cpu::change_image({.height = image.height,
                     .width = image.width,
                     .channels = image.channels,
                     .steps = &step,
                     .most = 1,
                     .x = before.data(),
                     .y = image.bytes},
                    isa);
}

PixelMap PixelMap::rotate(double degrees, std::int64_t height, std::int64_t width) {
  const double angle = degrees * std::numbers::pi / 180.0, cosine = std::cos(angle),
               sine = std::sin(angle);
  const double x = 0.5 * static_cast<double>(width), y = 0.5 * static_cast<double>(height);
  return {cosine, -sine, x - cosine * x + sine * y, sine, cosine, y - sine * x - cosine * y};
}

namespace pixel_steps {
namespace {

/// A factor in fixed point, at most 256: beyond that every nonzero byte becomes 255 anyway, and
/// products would exceed 32 bits.
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
    return static_cast<std::int64_t>(std::floor(value * 0x1p16 + 0.5));
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
