// PNG decoding by libpng. Its errors return by longjmp, so functions that call it have no objects
// with destructors.
#include <png.h>
#include <zlib.h>

#include <algorithm>
#include <cctype>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "apps/pictures/codec.h"
#include "core/error.h"

namespace starling {
namespace {

constexpr png_uint_32 kMostSide = 1 << 24;
// Limit on an unpacked ancillary chunk, against decompression bombs
constexpr png_alloc_size_t kMostChunk = 64 << 20;

struct PngReader {
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::span<const std::uint8_t> left;  ///< of the file
  std::jmp_buf failed;
  char text[256] = "";

  explicit PngReader(std::span<const std::uint8_t> file) : left(file) {}
  ~PngReader() {
    if (png) png_destroy_read_struct(&png, info ? &info : nullptr, nullptr);
  }
};

[[noreturn]] void on_png_error(png_structp png, png_const_charp text) {
  auto* reader = static_cast<PngReader*>(png_get_error_ptr(png));
  std::snprintf(reader->text, sizeof reader->text, "%s", text);
  std::longjmp(reader->failed, 1);
}
void ignore_warning(png_structp, png_const_charp) {}

void read_bytes(png_structp png, png_bytep to, std::size_t bytes) {
  auto* reader = static_cast<PngReader*>(png_get_io_ptr(png));
  if (bytes > reader->left.size()) png_error(png, "it ends early");
  std::memcpy(to, reader->left.data(), bytes);
  reader->left = reader->left.subspan(bytes);
}

bool open_png(PngReader& reader, StoredPicture* picture) {
  if (setjmp(reader.failed)) return false;
  reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader, on_png_error, ignore_warning);
  if (reader.png) reader.info = png_create_info_struct(reader.png);
  if (!reader.info) {
    std::snprintf(reader.text, sizeof reader.text, "libpng has no memory");
    return false;
  }
  png_set_read_fn(reader.png, &reader, read_bytes);
  png_set_user_limits(reader.png, kMostSide, kMostSide);
  png_set_chunk_malloc_max(reader.png, kMostChunk);
  png_set_chunk_cache_max(reader.png, 128);
  png_read_info(reader.png, reader.info);
  picture->height = png_get_image_height(reader.png, reader.info);
  picture->width = png_get_image_width(reader.png, reader.info);
  return true;
}

/// Sets up decoding to rows of 4 bytes per pixel, and `interlaced`: then all rows must be read
/// together. Returns false if libpng failed; reader.text has the reason.
bool prepare_rows(PngReader& reader, bool* interlaced) {
  if (setjmp(reader.failed)) return false;
  png_set_strip_16(reader.png);
  png_set_palette_to_rgb(reader.png);
  if (png_get_bit_depth(reader.png, reader.info) < 8) png_set_expand_gray_1_2_4_to_8(reader.png);
  png_set_strip_alpha(reader.png);
  png_set_gray_to_rgb(reader.png);
  png_set_filler(reader.png, 255, PNG_FILLER_AFTER);
  *interlaced = png_set_interlace_handling(reader.png) > 1;
  png_read_update_info(reader.png, reader.info);
  if (png_get_rowbytes(reader.png, reader.info) !=
      std::size_t{4} * png_get_image_width(reader.png, reader.info))
    png_error(reader.png, "its colours are of an unknown kind");
  return true;
}

/// `row`: memory for a row of the picture; `pixels`: output of the region.
bool read_rows(PngReader& reader, const StoredRegion* region, std::uint8_t* row,
               std::uint8_t* pixels) {
  if (setjmp(reader.failed)) return false;
  const auto stride = static_cast<std::size_t>(4 * region->width);
  for (std::int64_t y = 0; y < region->top + region->height; ++y) {
    png_read_row(reader.png, row, nullptr);
    if (y >= region->top)
      std::memcpy(pixels + static_cast<std::size_t>(y - region->top) * stride,
                  row + 4 * region->left, stride);
  }
  return true;
}

bool read_interlaced(PngReader& reader, png_bytepp rows) {
  if (setjmp(reader.failed)) return false;
  png_read_image(reader.png, rows);
  return true;
}

[[noreturn]] void damaged_png(const std::string& source, const char* text) {
  fail(ExitCode::kUsage, "picture", "{}: cannot be decoded as PNG: {}", source, text);
}

/// Unpacks up to a mebibyte of zlib data, enough to find an orientation; for damaged data, what
/// precedes the damage.
std::string unpack(std::string_view packed) {
  std::string text(std::size_t{1} << 20, '\0');
  z_stream stream{};
  if (::inflateInit(&stream) != Z_OK) return "";
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  ::inflate(&stream, Z_FINISH);
  text.resize(text.size() - stream.avail_out);
  ::inflateEnd(&stream);
  return text;
}

/// Removes and returns the text before the next zero byte, and removes the zero.
std::string_view until_zero(std::string_view& rest) {
  const std::string_view part = rest.substr(0, rest.find('\0'));
  rest.remove_prefix(std::min(rest.size(), part.size() + 1));
  return part;
}

/// EXIF data as ImageMagick stores it in text: an empty line, the profile's name, its length, then
/// lines of hexadecimal digits.
std::vector<std::uint8_t> parse_raw_profile(std::string_view text) {
  for (int line = 0; line < 3; ++line)
    text.remove_prefix(std::min(text.size(), text.find('\n')) +
                       (text.find('\n') < text.size() ? 1 : 0));
  std::vector<std::uint8_t> bytes;
  std::string digits;
  for (const char c : text) {
    if (std::isspace(static_cast<unsigned char>(c)) != 0) continue;
    if (std::isxdigit(static_cast<unsigned char>(c)) == 0) break;
    digits += c;
    if (digits.size() < 2) continue;
    bytes.push_back(static_cast<std::uint8_t>(std::stoi(digits, nullptr, 16)));
    digits.clear();
  }
  return bytes;
}

/// The orientation, from chunks before and after the pixels. Not by libpng, which would have to
/// decode the pixels to reach the latter.
int png_orientation(std::span<const std::uint8_t> file) {
  const auto number = [&](std::size_t at) {
    return std::size_t{file[at]} << 24 | std::size_t{file[at + 1]} << 16 |
           std::size_t{file[at + 2]} << 8 | file[at + 3];
  };
  int exif = 0, profile = 0, xmp = 0;
  bool has_exif = false;
  for (std::size_t at = 8; at + 12 <= file.size();) {
    const std::size_t length = number(at);
    if (length > file.size() - at - 12) break;
    const std::string_view type(reinterpret_cast<const char*>(file.data() + at + 4), 4);
    std::string_view rest(reinterpret_cast<const char*>(file.data() + at + 8), length);
    const std::size_t end = at + 8 + length;
    if ((type == "eXIf" || type == "tEXt" || type == "zTXt" || type == "iTXt") &&
        ::crc32_z(0, file.data() + at + 4, length + 4) == number(end)) {
      if (type == "eXIf") {
        has_exif = true;
        if (exif == 0) exif = exif_orientation(file.subspan(at + 8, length));
      } else {
        const std::string_view keyword = until_zero(rest);
        bool packed = type == "zTXt";
        // Skips the compression method, always zlib
        if (packed) rest.remove_prefix(std::min<std::size_t>(rest.size(), 1));
        if (type == "iTXt") {
          packed = !rest.empty() && rest[0] == 1;
          rest.remove_prefix(std::min<std::size_t>(rest.size(), 2));
          until_zero(rest);  // the language tag,
          until_zero(rest);  // and the translated keyword
        }
        const bool is_profile = keyword == "Raw profile type exif";
        if (is_profile || keyword == "XML:com.adobe.xmp") {
          const std::string text = packed ? unpack(rest) : std::string(rest);
          if (is_profile && profile == 0) profile = exif_orientation(parse_raw_profile(text));
          if (!is_profile && xmp == 0) xmp = xmp_orientation(text);
        }
      }
    }
    at = end + 4;
  }
  for (const int found : {exif, has_exif ? 0 : profile, xmp}) {
    if (found != 0) return found;
  }
  return 1;
}

}  // namespace

bool is_png(std::span<const std::uint8_t> file) {
  return file.size() >= 8 && png_sig_cmp(file.data(), 0, 8) == 0;
}

StoredPicture png_header(std::span<const std::uint8_t> file, const std::string& source) {
  PngReader reader(file);
  StoredPicture picture;
  if (!open_png(reader, &picture)) damaged_png(source, reader.text);
  picture.orientation = png_orientation(file);
  return picture;
}

void decode_png(std::span<const std::uint8_t> file, const std::string& source,
                const StoredRegion& region, DecodedRegion& out) {
  PngReader reader(file);
  StoredPicture picture;
  bool interlaced = false;
  if (!open_png(reader, &picture) || !prepare_rows(reader, &interlaced))
    damaged_png(source, reader.text);
  out.top = region.top;
  out.left = region.left;
  out.height = region.height;
  out.width = region.width;
  const auto stride = static_cast<std::size_t>(4 * picture.width);
  if (!interlaced) {
    out.pixels.resize(static_cast<std::size_t>(4 * region.height * region.width));
    std::vector<std::uint8_t> row(stride);
    if (!read_rows(reader, &region, row.data(), out.pixels.data()))
      damaged_png(source, reader.text);
    return;
  }
  // Each pass of an interlaced picture covers the whole picture.
  out.top = out.left = 0;
  out.height = picture.height;
  out.width = picture.width;
  out.pixels.resize(stride * static_cast<std::size_t>(picture.height));
  std::vector<png_bytep> rows;
  for (std::int64_t y = 0; y < picture.height; ++y)
    rows.push_back(out.pixels.data() + stride * static_cast<std::size_t>(y));
  if (!read_interlaced(reader, rows.data())) damaged_png(source, reader.text);
}

}  // namespace starling
