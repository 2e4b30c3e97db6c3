#pragma once

#include <cstdint>

#include "kernels/math/pixel_steps.h"
#include "kernels/math/resize_taps.h"

namespace starling {

/// An image of H×W×C bytes; colour operations need C = 1 (grey) or 3 (RGB).
struct ImageBytes {
  std::uint8_t* bytes = nullptr;
  std::int64_t height = 0, width = 0, channels = 0;
  std::int64_t size() const { return height * width * channels; }
};

/// Error(kInternal) if the step does not support images of that size.
void check_step(std::int64_t channels, std::int64_t height, std::int64_t width,
                const PixelStep& step);
/// Changes an image in place, with results bit-identical to Backend::change_pixels on every
/// instruction set.
void change_pixels(const ImageBytes& image, const PixelStep& step);

/// The inverse map of an affine transform: the pixel with centre (x, y) is read from (xx·x + xy·y +
/// x0, yx·x + yy·y + y0). The origin is the image's corner.
struct PixelMap {
  double xx = 1, xy = 0, x0 = 0, yx = 0, yy = 1, y0 = 0;

  static PixelMap shear_x(double shift) { return {.xy = shift}; }
  static PixelMap shear_y(double shift) { return {.yx = shift}; }
  static PixelMap translate(double x, double y) { return {.x0 = -x, .y0 = -y}; }
  /// Counter-clockwise around the centre.
  static PixelMap rotate(double degrees, std::int64_t height, std::int64_t width);
};

/// Steps as torchvision.transforms.functional defines them for uint8, within one grey level.
/// Factors are >= 0; 1 leaves the image unchanged.
namespace pixel_steps {

PixelStep brightness(double factor);
PixelStep contrast(double factor);    ///< relative to the mean grey value
PixelStep saturation(double factor);  ///< leaves grey images unchanged
/// Rotates hues by `turn` of the colour circle, -0.5 to 0.5. Leaves grey images unchanged.
PixelStep hue(double turn);
/// Extrapolates from (or, below 1, interpolates to) the image smoothed by a 3×3 kernel. Leaves
/// border pixels unchanged, and images with two or fewer rows or columns.
PixelStep sharpness(double factor);
PixelStep posterize(int bits);         ///< keeps the upper `bits`, 0 to 8
PixelStep solarize(double threshold);  ///< inverts bytes >= threshold
PixelStep autocontrast();              ///< stretches each channel to 0 … 255
PixelStep equalize();                  ///< equalises each channel's histogram
/// Nearest-pixel sampling by an inverse map; zeros outside. In 16-bit fixed point, as Pillow.
PixelStep transform(const PixelMap& map);
/// A window of the image's size at (top, left), mirrored if `flip`. Outside of the image: zeros, or
/// with `reflect` the image reflected at its edge pixels, which requires |top| < height and |left|
/// < width.
PixelStep window(std::int64_t top, std::int64_t left, bool flip, bool reflect = false);
/// Crops a part and resizes it to the image's size.
PixelStep resize(std::int64_t top, std::int64_t left, std::int64_t height, std::int64_t width,
                 Interpolation interpolation);

}  // namespace pixel_steps
}  // namespace starling
