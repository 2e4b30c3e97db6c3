#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// What the two formats' readers share with the decoder.

namespace starling {

/// The picture in a file as it is stored: before its orientation.
struct StoredPicture {
  std::int64_t height = 0, width = 0;
  int orientation = 1;  ///< EXIF's: 1 to 8; from 5 on rows are columns
};

/// The rows and columns that are wanted of a stored picture, and what is delivered.
struct StoredRegion {
  std::int64_t top = 0, left = 0, height = 0, width = 0;  ///< at scale 1
  int denominator = 1;                                    ///< 1, 2, 4 or 8: the scale wanted
};
struct DecodedRegion {
  /// Place in pixels of the scaled picture; holds what was wanted
  std::int64_t top = 0, left = 0, height = 0, width = 0;
  /// Red, green, blue and a byte that is anything; memory is kept for the next picture
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

// How a picture is turned. As Pillow does, one looks in EXIF data, and where these have no such
// entry, in XMP. 0: nothing is said; what makes no sense is 1.

/// Orientation from EXIF data: a TIFF header and its first directory, after any number of
/// "Exif\0\0".
int exif_orientation(std::span<const std::uint8_t> exif);
/// Orientation from an XMP packet: the first tiff:Orientation, an attribute or an element.
int xmp_orientation(std::string_view packet);

}  // namespace starling
