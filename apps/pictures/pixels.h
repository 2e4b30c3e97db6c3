#pragma once

#include <cstdint>

#include "kernels/math/pixel_steps.h"
#include "kernels/math/resize_taps.h"

namespace starling {

/// An image of H×W×C bytes, C = 1 (grey) or 3 (RGB) for what looks at colours.
struct ImageBytes {
  std::uint8_t* bytes = nullptr;
  std::int64_t height = 0, width = 0, channels = 0;
  std::int64_t size() const { return height * width * channels; }
};

/// Error(kInternal) where an image of that size cannot go through the step.
void check_step(std::int64_t channels, std::int64_t height, std::int64_t width,
                const PixelStep& step);
/// Changes an image in place. The bits are those of Backend::change_pixels, on every instruction
/// set.
void change_pixels(const ImageBytes& image, const PixelStep& step);

/// Where a pixel of the result comes from: centres (x, y) are taken from (xx·x + xy·y + x0, yx·x +
/// yy·y + y0), from the corner of the image.
struct PixelMap {
  double xx = 1, xy = 0, x0 = 0, yx = 0, yy = 1, y0 = 0;

  static PixelMap shear_x(double shift) { return {.xy = shift}; }
  static PixelMap shear_y(double shift) { return {.yx = shift}; }
  static PixelMap translate(double x, double y) { return {.x0 = -x, .y0 = -y}; }
  /// Counter-clockwise about the middle.
  static PixelMap rotate(double degrees, std::int64_t height, std::int64_t width);
};

/// Steps as torchvision.transforms.functional defines them for bytes, within one grey level.
/// Factors are >= 0, 1 leaves the image as it is.
namespace pixel_steps {

PixelStep brightness(double factor);
PixelStep contrast(double factor);    ///< about the mean of the image's greys
PixelStep saturation(double factor);  ///< grey images stay as they are
/// Turns hues by `turn` of a circle, -0.5 to 0.5. Grey images stay as they are.
PixelStep hue(double turn);
/// Away from (or to, below 1) the image smoothed by a 3×3 kernel. The border's pixels stay, and so
/// do images of two or fewer rows or columns.
PixelStep sharpness(double factor);
PixelStep posterize(int bits);         ///< keeps the upper `bits`, 0 to 8
PixelStep solarize(double threshold);  ///< inverts bytes from there on
PixelStep autocontrast();              ///< stretches each channel to 0 … 255
PixelStep equalize();                  ///< evens out each channel's histogram
/// The pixel that the map names, without interpolation; zeros outside. In fixed-point numbers of 16
/// bits as Pillow does.
PixelStep transform(const PixelMap& map);
/// The image's window at (top, left) of the same size, mirrored where `flip` is set. Outside of the
/// image: zeros, or with `reflect` the image mirrored at its outermost pixels, where |top| < height
/// and |left| < width.
PixelStep window(std::int64_t top, std::int64_t left, bool flip, bool reflect = false);
/// A part of the image, made as large as the image.
PixelStep resize(std::int64_t top, std::int64_t left, std::int64_t height, std::int64_t width,
                 Interpolation interpolation);

}  // namespace pixel_steps
}  // namespace starling
