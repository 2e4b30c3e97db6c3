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

// Picture files as bytes of images: JPEG and PNG, told apart by content. Only what a crop needs is
// decoded, at the smallest scale that covers it. Needs kernels, core, libjpeg-turbo and libpng; no
// MPI.

namespace starling {

/// Size of a picture as it is seen: after its EXIF orientation.
struct PictureSize {
  std::int64_t height = 0, width = 0;
  friend bool operator==(const PictureSize&, const PictureSize&) = default;
};

/// What becomes an image: a box of a picture, which is resized. Pixels outside of the window are
/// not looked at, so that the rim of a crop does not shine through.
struct PicturePart {
  std::int64_t top = 0, left = 0, height = 0, width = 0;  ///< the window
  /// The box, in the picture's pixels; inside the window
  double box_top = 0, box_left = 0, box_height = 0, box_width = 0;

  /// The whole of a window.
  static PicturePart window(std::int64_t top, std::int64_t left, std::int64_t height,
                            std::int64_t width);
  /// The centre of a picture, as torchvision's Resize and CenterCrop take it. The shorter side is
  /// resized to `resize` pixels, the longer one in proportion, rounded down; then `height` ×
  /// `width` is cut out. Where the resized picture is smaller than the cut, it is enlarged until it
  /// covers it.
  static PicturePart centre(const PictureSize& picture, std::int64_t resize, std::int64_t height,
                            std::int64_t width);
};
/// Chooses the part once the picture's size is known, before anything is decoded.
using PartChoice = std::function<PicturePart(const PictureSize&)>;

std::vector<std::string> interpolation_names();
/// Error(kUsage) where there is no such filter.
Interpolation interpolation_of(std::string_view name);

struct PictureSettings {
  std::int64_t max_pixels = 200'000'000;  ///< a larger picture is refused by its header
  Interpolation interpolation = Interpolation::kBilinear;
  /// JPEG of which a crop shrinks to half or less is decoded at 1/2, 1/4 or 1/8: for training
  bool scaled_decoding = true;
};

/// A picture that is decoded: rows of red, green and blue, without gaps.
struct PixelRows {
  const std::uint8_t* pixels = nullptr;
  std::int64_t height = 0, width = 0;
};

/// A JPEG file of such a picture, 4:2:0, without metadata; quality is libjpeg's, 1 to 100.
/// Error(kUsage) names `source` where JPEG has no such picture: more than 65,500 pixels high or
/// wide.
std::vector<std::uint8_t> encode_jpeg(const PixelRows& picture, const std::string& source,
                                      int quality);

/// Where a decoder leaves the pixels of a part, for another that resizes them, such as a device.
class CutTarget {
 public:
  virtual ~CutTarget() = default;
  /// Memory for so many bytes; null where that is too much. It is asked once more then, for an
  /// image's own, which always has room. Of each picture one call has success.
  virtual std::uint8_t* take(std::int64_t bytes) = 0;
  CutPicture cut;  ///< what lies there. Its `place` is left to the target
};

/// Decodes pictures one after another; keeps its memory from one to the next. One thread uses it.
///
/// Errors are Error(kUsage) that name `source` and what is wrong: no picture, cut off, damaged,
/// larger than allowed. Colours: grey and palettes become RGB, CMYK as Pillow converts it (Adobe's
/// inverted values), an alpha channel is dropped, of 16 bits the upper 8 are taken, all as Pillow's
/// convert("RGB") (but of 16 bits grey, where Pillow takes the lower); one channel is ITU-R 601's
/// luma, as convert("L"). Of an animation the first frame.
class PictureDecoder {
 public:
  explicit PictureDecoder(const PictureSettings& settings = {});
  ~PictureDecoder();
  PictureDecoder(PictureDecoder&&) noexcept;
  PictureDecoder& operator=(PictureDecoder&&) noexcept;
  /// Takes other settings from here on.
  void use(const PictureSettings& settings);

  /// Writes height × width × channels (1 or 3) bytes.
  void decode(std::span<const std::uint8_t> file, const std::string& source,
              const PartChoice& choose, std::int64_t height, std::int64_t width,
              std::int64_t channels, std::uint8_t* out);
  /// Leaves 3 channels in `target`, not resized yet, but for a part that shrinks by more than
  /// CutPicture::kMostShrink or has no room.
  void decode(std::span<const std::uint8_t> file, const std::string& source,
              const PartChoice& choose, std::int64_t height, std::int64_t width, CutTarget& target);
  /// Cuts a picture whose pixels lie in memory: nothing is decoded, and where the part has the
  /// image's size, rows are copied.
  void cut(const PixelRows& picture, const std::string& source, const PartChoice& choose,
           std::int64_t height, std::int64_t width, std::uint8_t* out);
  void cut(const PixelRows& picture, const std::string& source, const PartChoice& choose,
           std::int64_t height, std::int64_t width, CutTarget& target);
  /// Decodes all of a picture, at full scale, to see whether that can be done.
  void check(std::span<const std::uint8_t> file, const std::string& source);
  /// A picture's size, from the header alone.
  PictureSize size(std::span<const std::uint8_t> file, const std::string& source);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A file's bytes. Error(kUsage) names the file and the system's reason; so does one over
/// `max_bytes`.
std::vector<std::uint8_t> read_picture_file(const std::string& path,
                                            std::int64_t max_bytes = std::int64_t{1} << 30);

}  // namespace starling
