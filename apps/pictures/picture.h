#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/math/resize_pictures.h"
#include "kernels/math/resize_taps.h"

// Decodes picture files, JPEG and PNG (recognised by their first bytes), to images. Decodes only
// what a crop needs, at the smallest sufficient scale. Depends on kernels, core, libjpeg-turbo and
// libpng; not on MPI.

namespace starling {

/// Size of a picture as displayed, i.e. after its EXIF orientation.
struct PictureSize {
  std::int64_t height = 0, width = 0;
  friend bool operator==(const PictureSize&, const PictureSize&) = default;
};

/// The part of a picture that is resized to an image: a box, and a window around it. Pixels outside
/// the window are not read, so that a crop's surroundings do not affect its edge pixels.
struct PicturePart {
  std::int64_t top = 0, left = 0, height = 0, width = 0;  ///< the window
  /// The box, in pixels of the picture, inside the window
  double box_top = 0, box_left = 0, box_height = 0, box_width = 0;

  /// A box that covers the whole window.
  static PicturePart window(std::int64_t top, std::int64_t left, std::int64_t height,
                            std::int64_t width);
  /// The centre of a picture as torchvision's Resize and CenterCrop take it: the shorter side is
  /// resized to `resize` pixels, the longer one in proportion, rounded down, then `height` ×
  /// `width` is cropped. If the resized picture is smaller than the crop, it is enlarged to cover
  /// it.
  static PicturePart centre(const PictureSize& picture, std::int64_t resize, std::int64_t height,
                            std::int64_t width);
};
/// Chooses the part, given the picture's size, before decoding.
using PartChoice = std::function<PicturePart(const PictureSize&)>;

std::vector<std::string> interpolation_names();
/// Error(kUsage) if there is no such filter.
Interpolation interpolation_of(std::string_view name);

struct PictureSettings {
  std::int64_t max_pixels = 200'000'000;  ///< larger pictures are rejected after reading the header
  Interpolation interpolation = Interpolation::kBilinear;
  /// Decode JPEG at 1/2, 1/4 or 1/8 scale if a crop shrinks by that much; for training
  bool scaled_decoding = true;
};

/// A decoded picture: rows of RGB without gaps.
struct PixelRows {
  const std::uint8_t* pixels = nullptr;
  std::int64_t height = 0, width = 0;
};

/// Encodes a picture as JPEG, 4:2:0, without metadata; quality is libjpeg's, 1 to 100.
/// Error(kUsage) names `source` if the picture is too large for JPEG: more than 65,500 pixels high
/// or wide.
std::vector<std::uint8_t> encode_jpeg(const PixelRows& picture, const std::string& source,
                                      int quality);

/// Where a decoder stores the pixels of a part that something else resizes, such as a device.
class CutTarget {
 public:
  virtual ~CutTarget() = default;
  /// Allocates memory for a part; null if there is not enough. Then it is called again for the size
  /// of the resized image, which always succeeds. One call per picture succeeds.
  virtual std::uint8_t* take(std::int64_t bytes) = 0;
  CutPicture cut;  ///< describes the stored pixels; the target sets `place`
};

/// Decodes pictures one after another, reusing its memory. Not thread-safe.
///
/// Errors are Error(kUsage) with `source` and the reason: not a picture, truncated, damaged, larger
/// than allowed. Colours are converted as Pillow's convert("RGB") does: grey and palettes become
/// RGB, CMYK is converted with Adobe's inverted values, an alpha channel is dropped. Of 16 bits the
/// upper 8 are taken, unlike Pillow for grey, which takes the lower. One channel is ITU-R 601 luma,
/// as convert("L"). Of an animation the first frame is decoded.
class PictureDecoder {
 public:
  explicit PictureDecoder(const PictureSettings& settings = {});
  ~PictureDecoder();
  PictureDecoder(PictureDecoder&&) noexcept;
  PictureDecoder& operator=(PictureDecoder&&) noexcept;
  void use(const PictureSettings& settings);

  /// Writes height × width × channels (1 or 3) bytes.
  void decode(std::span<const std::uint8_t> file, const std::string& source,
              const PartChoice& choose, std::int64_t height, std::int64_t width,
              std::int64_t channels, std::uint8_t* out);
  /// Stores 3 channels of the part in `target`, without resizing; but resized if the part shrinks
  /// by more than CutPicture::kMostShrink, or there is no memory.
  void decode(std::span<const std::uint8_t> file, const std::string& source,
              const PartChoice& choose, std::int64_t height, std::int64_t width, CutTarget& target);
  /// Makes an image from a picture in memory. If the part has the image's size, rows are copied.
  void cut(const PixelRows& picture, const std::string& source, const PartChoice& choose,
           std::int64_t height, std::int64_t width, std::uint8_t* out);
  void cut(const PixelRows& picture, const std::string& source, const PartChoice& choose,
           std::int64_t height, std::int64_t width, CutTarget& target);
  /// Decodes a whole picture at full scale, to test that it can be decoded.
  void check(std::span<const std::uint8_t> file, const std::string& source);
  /// A picture's size, from the header only.
  PictureSize size(std::span<const std::uint8_t> file, const std::string& source);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Reads a file. Error(kUsage) with the file and the system's reason, or if it is larger than
/// `max_bytes`.
std::vector<std::uint8_t> read_picture_file(const std::string& path,
                                            std::int64_t max_bytes = std::int64_t{1} << 30);

}  // namespace starling
