#pragma once

#include <cstdint>

namespace starling {

/// An image of H×W×C bytes, C = 1 (grey) or 3 (RGB) for what looks at colours.
struct ImageBytes {
  std::uint8_t* bytes = nullptr;
  std::int64_t height = 0, width = 0, channels = 0;
  std::int64_t size() const { return height * width * channels; }
};

// Changes of images in place, as torchvision.transforms.functional defines them for bytes, within one grey level and on every instruction
// set with the same bits. Factors are >= 0, 1 leaves the image as it is.
void adjust_brightness(const ImageBytes& image, double factor);
void adjust_contrast(const ImageBytes& image, double factor);    ///< about the mean of the image's greys
void adjust_saturation(const ImageBytes& image, double factor);  ///< grey images stay as they are
/// Turns hues by `turn` of a circle, -0.5 to 0.5. Grey images stay as they are.
void adjust_hue(const ImageBytes& image, double turn);
/// Away from (or to, below 1) the image smoothed by a 3×3 kernel. The border's pixels stay, and so do images of two or fewer rows or
/// columns.
void adjust_sharpness(const ImageBytes& image, double factor);
void posterize(const ImageBytes& image, int bits);         ///< keeps the upper `bits`, 0 to 8
void solarize(const ImageBytes& image, double threshold);  ///< inverts bytes from there on
void autocontrast(const ImageBytes& image);                ///< stretches each channel to 0 … 255
void equalize(const ImageBytes& image);                    ///< evens out each channel's histogram

/// Where a pixel of the result comes from: centres (x, y) are taken from (xx·x + xy·y + x0, yx·x + yy·y + y0), from the corner of the
/// image.
struct PixelMap {
  double xx = 1, xy = 0, x0 = 0, yx = 0, yy = 1, y0 = 0;

  static PixelMap shear_x(double shift) { return {.xy = shift}; }
  static PixelMap shear_y(double shift) { return {.yx = shift}; }
  static PixelMap translate(double x, double y) { return {.x0 = -x, .y0 = -y}; }
  /// Counter-clockwise about the middle.
  static PixelMap rotate(double degrees, std::int64_t height, std::int64_t width);
};
/// The pixel there, without interpolation; zeros outside. In fixed-point numbers of 16 bits as Pillow does.
void transform(const ImageBytes& image, const PixelMap& map);

/// The image's window at (top, left) of the same size, mirrored where `flip` is set. Outside of the image: zeros, or with `reflect` the
/// image mirrored at its outermost pixels, where |top| < height and |left| < width.
void take_window(const ImageBytes& image, std::int64_t top, std::int64_t left, bool flip, bool reflect = false);

}  // namespace starling
