// PNG by libpng. Its errors leave through longjmp, so the functions that it may leave hold no objects with destructors.
#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "apps/pictures/codec.h"
#include "core/error.h"

namespace starling {
namespace {

constexpr png_uint_32 kMostSide = 1 << 24;
constexpr png_alloc_size_t kMostChunk = 64 << 20;  // of an ancillary chunk; a bomb unpacks to far more

struct PngReader {
  png_structp png = nullptr;
  png_infop info = nullptr;
  const std::uint8_t* data = nullptr;
  std::size_t left = 0;
  std::jmp_buf failed;
  char text[256] = "";
};

[[noreturn]] void leave_png(png_structp png, png_const_charp text) {
  auto* reader = static_cast<PngReader*>(png_get_error_ptr(png));
  std::snprintf(reader->text, sizeof reader->text, "%s", text);
  std::longjmp(reader->failed, 1);
}
void ignore_warning(png_structp, png_const_charp) {}

void read_bytes(png_structp png, png_bytep to, std::size_t bytes) {
  auto* reader = static_cast<PngReader*>(png_get_io_ptr(png));
  if (bytes > reader->left) png_error(png, "it ends early");
  std::memcpy(to, reader->data, bytes);
  reader->data += bytes;
  reader->left -= bytes;
}

bool open_png(PngReader& reader, StoredPicture* picture) {
  if (setjmp(reader.failed)) return false;
  reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader, leave_png, ignore_warning);
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
#ifdef PNG_eXIf_SUPPORTED
  png_uint_32 bytes = 0;
  png_bytep exif = nullptr;
  if (png_get_eXIf_1(reader.png, reader.info, &bytes, &exif) != 0) picture->orientation = exif_orientation({exif, bytes});
#endif
  return true;
}

/// After it each row is 4 bytes a pixel. False with the text, or sets whether all rows must be read at once.
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
  if (png_get_rowbytes(reader.png, reader.info) != std::size_t{4} * png_get_image_width(reader.png, reader.info))
    png_error(reader.png, "its colours are of an unknown kind");
  return true;
}

/// `row`: one of the picture's; `pixels`: the region.
bool read_rows(PngReader& reader, const StoredRegion* region, std::uint8_t* row, std::uint8_t* pixels) {
  if (setjmp(reader.failed)) return false;
  const auto stride = static_cast<std::size_t>(4 * region->width);
  for (std::int64_t y = 0; y < region->top + region->height; ++y) {
    png_read_row(reader.png, row, nullptr);
    if (y >= region->top) std::memcpy(pixels + static_cast<std::size_t>(y - region->top) * stride, row + 4 * region->left, stride);
  }
  return true;
}

bool read_interlaced(PngReader& reader, png_bytepp rows) {
  if (setjmp(reader.failed)) return false;
  png_read_image(reader.png, rows);
  return true;
}

struct PngGuard {
  PngReader* reader;
  ~PngGuard() {
    if (reader->png) png_destroy_read_struct(&reader->png, reader->info ? &reader->info : nullptr, nullptr);
  }
};

[[noreturn]] void damaged_png(const std::string& source, const char* text) {
  fail(ExitCode::kUsage, "picture", "{}: cannot be decoded as PNG: {}", source, text);
}

}  // namespace

bool is_png(std::span<const std::uint8_t> file) { return file.size() >= 8 && png_sig_cmp(file.data(), 0, 8) == 0; }

StoredPicture png_header(std::span<const std::uint8_t> file, const std::string& source) {
  PngReader reader;
  reader.data = file.data();
  reader.left = file.size();
  const PngGuard guard{&reader};
  StoredPicture picture;
  if (!open_png(reader, &picture)) damaged_png(source, reader.text);
  return picture;
}

void decode_png(std::span<const std::uint8_t> file, const std::string& source, const StoredRegion& region, DecodedRegion& out) {
  PngReader reader;
  reader.data = file.data();
  reader.left = file.size();
  const PngGuard guard{&reader};
  StoredPicture picture;
  bool interlaced = false;
  if (!open_png(reader, &picture) || !prepare_rows(reader, &interlaced)) damaged_png(source, reader.text);
  out.top = region.top;
  out.left = region.left;
  out.height = region.height;
  out.width = region.width;
  const auto stride = static_cast<std::size_t>(4 * picture.width);
  if (!interlaced) {
    out.pixels.resize(static_cast<std::size_t>(4 * region.height * region.width));
    std::vector<std::uint8_t> row(stride);
    if (!read_rows(reader, &region, row.data(), out.pixels.data())) damaged_png(source, reader.text);
    return;
  }
  // The passes of an interlaced picture each go over all of it.
  out.top = out.left = 0;
  out.height = picture.height;
  out.width = picture.width;
  out.pixels.resize(stride * static_cast<std::size_t>(picture.height));
  std::vector<png_bytep> rows;
  for (std::int64_t y = 0; y < picture.height; ++y) rows.push_back(out.pixels.data() + stride * static_cast<std::size_t>(y));
  if (!read_interlaced(reader, rows.data())) damaged_png(source, reader.text);
}

}  // namespace starling
