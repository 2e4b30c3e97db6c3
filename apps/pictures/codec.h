#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Interface between the decoder and the readers of the two formats.

namespace starling {

/// Size of the picture as stored, before its orientation is applied.
struct StoredPicture {
  std::int64_t height = 0, width = 0;
  int orientation = 1;  ///< EXIF orientation, 1 to 8; from 5 on rows and columns are swapped
};

/// The region of a stored picture to decode, and the scale.
struct StoredRegion {
  std::int64_t top = 0, left = 0, height = 0, width = 0;  ///< at scale 1
  int denominator = 1;                                    ///< scale 1/1, 1/2, 1/4 or 1/8
};
struct DecodedRegion {
  /// Position in pixels of the scaled picture; contains the requested region
  std::int64_t top = 0, left = 0, height = 0, width = 0;
  /// RGBX, X undefined; the memory is reused for the next picture
  std::vector<std::uint8_t> pixels;
};

bool is_jpeg(std::span<const std::uint8_t> file);
bool is_png(std::span<const std::uint8_t> file);
StoredPicture jpeg_header(std::span<const std::uint8_t> file, const std::string& source);
StoredPicture png_header(std::span<const std::uint8_t> file, const std::string& source);
void decode_jpeg(std::span<const std::uint8_t> file, const std::string& source,
                 const StoredRegion& region, DecodedRegion& out);
/// Decodes a PNG file, always at scale 1.
void decode_png(std::span<const std::uint8_t> file, const std::string& source,
                const StoredRegion& region, DecodedRegion& out);

// How a picture is rotated. As in Pillow, EXIF data take precedence over XMP. 0: no orientation;
// invalid values are 1.

/// Orientation from EXIF data: a TIFF header and its first directory, after any number of
/// "Exif\0\0".
int exif_orientation(std::span<const std::uint8_t> exif);
/// Orientation from an XMP packet: the first tiff:Orientation, an attribute or an element.
int xmp_orientation(std::string_view packet);

}  // namespace starling
