// JPEG by libjpeg-turbo. Its errors return by longjmp, so functions that call it have no objects
// with destructors.
#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "apps/pictures/codec.h"
#include "apps/pictures/picture.h"
#include "core/error.h"

// jerror.h needs <cstdio> before it.
#include <jerror.h>
#include <jpeglib.h>

namespace starling {
namespace {

// Limit on the scans of a picture: a progressive file of thousands of scans would take minutes to
// decode, and real files have few
constexpr int kMostScans = 500;
// Extra pixels decoded around a crop: chroma upsampling at its edge reads neighbours
constexpr JDIMENSION kRim = 16;
constexpr unsigned kExifMarker = JPEG_APP0 + 1;
using namespace std::string_view_literals;
constexpr std::string_view kExifName = "Exif\0\0"sv, kXmpName = "http://ns.adobe.com/xap/1.0/\0"sv;

/// Where libjpeg's errors go.
struct JpegErrors {
  jpeg_error_mgr manager;
  std::jmp_buf failed;
  char text[JMSG_LENGTH_MAX];
};

[[noreturn]] void on_error(j_common_ptr info) {
  auto* errors = static_cast<JpegErrors*>(info->client_data);
  info->err->format_message(info, errors->text);
  std::longjmp(errors->failed, 1);
}

struct JpegReader {
  jpeg_decompress_struct info{};
  jpeg_progress_mgr progress{};
  JpegErrors errors;
  ~JpegReader() { jpeg_destroy_decompress(&info); }
};

/// Warnings about missing or damaged data are errors; the rest are oddities that all programs
/// accept.
void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_ADOBE_XFORM:
    case JWRN_BOGUS_PROGRESSION:
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_JFIF_MAJOR:
    case JWRN_TOO_MUCH_DATA: return;
    default: on_error(info);
  }
}

void count_scans(j_common_ptr info) {
  auto* decompress = reinterpret_cast<j_decompress_ptr>(info);
  if (decompress->input_scan_number <= kMostScans) return;
  auto* errors = static_cast<JpegErrors*>(info->client_data);
  std::snprintf(errors->text, sizeof errors->text, "more than %d scans", kMostScans);
  std::longjmp(errors->failed, 1);
}

void begin(JpegReader& reader, const std::uint8_t* data, std::size_t bytes) {
  reader.info.err = jpeg_std_error(&reader.errors.manager);
  reader.errors.manager.error_exit = on_error;
  reader.errors.manager.emit_message = on_message;
  reader.info.client_data = &reader.errors;
  jpeg_create_decompress(&reader.info);
  reader.progress.progress_monitor = count_scans;
  reader.info.progress = &reader.progress;
  jpeg_mem_src(&reader.info, data, static_cast<unsigned long>(bytes));
}

/// Returns false if libjpeg failed; reader.errors.text has the reason.
bool read_header(JpegReader& reader, const std::uint8_t* data, std::size_t bytes,
                 StoredPicture* picture) {
  if (setjmp(reader.errors.failed)) return false;
  begin(reader, data, bytes);
  jpeg_save_markers(&reader.info, static_cast<int>(kExifMarker), 0xFFFF);
  jpeg_read_header(&reader.info, TRUE);
  picture->height = reader.info.image_height;
  picture->width = reader.info.image_width;
  int exif = 0, xmp = 0;  // each of the first marker that has an orientation
  for (jpeg_saved_marker_ptr marker = reader.info.marker_list; marker; marker = marker->next) {
    if (marker->marker != kExifMarker) continue;
    const std::string_view text(reinterpret_cast<const char*>(marker->data), marker->data_length);
    if (exif == 0 && text.starts_with(kExifName))
      exif = exif_orientation({marker->data, marker->data_length});
    if (xmp == 0 && text.starts_with(kXmpName)) xmp = xmp_orientation(text);
  }
  picture->orientation = exif != 0 ? exif : xmp != 0 ? xmp : 1;
  return true;
}

/// The region in pixels of the scaled picture, including the extra pixels.
struct ScaledRegion {
  JDIMENSION top, left, height, width;
};

/// Sets the scale, and computes which rows and columns of the scaled picture will be read: columns
/// start where libjpeg can start.
bool begin_region(JpegReader& reader, const std::uint8_t* data, std::size_t bytes,
                  const StoredRegion* wanted, ScaledRegion* region) {
  if (setjmp(reader.errors.failed)) return false;
  begin(reader, data, bytes);
  jpeg_read_header(&reader.info, TRUE);
  const bool four_colours =
      reader.info.jpeg_color_space == JCS_CMYK || reader.info.jpeg_color_space == JCS_YCCK;
  reader.info.out_color_space = four_colours ? JCS_CMYK : JCS_EXT_RGBX;
  reader.info.scale_num = 1;
  reader.info.scale_denom = static_cast<unsigned>(wanted->denominator);
  jpeg_start_decompress(&reader.info);
  const auto scale = static_cast<JDIMENSION>(wanted->denominator);
  const auto part = [&](std::int64_t begin_at, std::int64_t length, JDIMENSION size,
                        JDIMENSION* from, JDIMENSION* count) {
    const auto first = static_cast<JDIMENSION>(begin_at) / scale;
    JDIMENSION end = (static_cast<JDIMENSION>(begin_at + length) + scale - 1) / scale;
    if (end > size) end = size;
    *from = first > kRim ? first - kRim : 0;
    if (*from >= size) *from = size - 1;
    const JDIMENSION last = end + kRim > size ? size : end + kRim;
    *count = last - *from;
  };
  part(wanted->top, wanted->height, reader.info.output_height, &region->top, &region->height);
  part(wanted->left, wanted->width, reader.info.output_width, &region->left, &region->width);
  if (region->width < reader.info.output_width)
    jpeg_crop_scanline(&reader.info, &region->left, &region->width);
  return true;
}

/// Pillow's conversion, c·k/255 etc. of inverted values, with the rounding of its MULDIV255.
void cmyk_to_rgb(std::uint8_t* row, JDIMENSION pixels) {
  for (JDIMENSION i = 0; i < pixels; ++i, row += 4) {
    const int white = row[3];
    for (int c = 0; c < 3; ++c) {
      const int product = (255 - row[c]) * white + 128;
      const int value = white - ((product + (product >> 8)) >> 8);
      row[c] = static_cast<std::uint8_t>(value < 0 ? 0 : value);
    }
  }
}

bool read_region(JpegReader& reader, const ScaledRegion* region, std::uint8_t* pixels) {
  if (setjmp(reader.errors.failed)) return false;
  const bool four_colours = reader.info.out_color_space == JCS_CMYK;
  const std::size_t stride = std::size_t{4} * region->width;
  if (region->top > 0) jpeg_skip_scanlines(&reader.info, region->top);
  for (JDIMENSION y = 0; y < region->height; ++y) {
    JSAMPROW to = pixels + y * stride;
    jpeg_read_scanlines(&reader.info, &to, 1);
    if (four_colours) cmyk_to_rgb(to, region->width);
  }
  return true;
}

struct JpegWriter {
  jpeg_compress_struct info{};
  JpegErrors errors;
  unsigned char* bytes = nullptr;  ///< allocated by libjpeg
  unsigned long count = 0;
  ~JpegWriter() {
    jpeg_destroy_compress(&info);
    std::free(bytes);
  }
};

/// Returns false if libjpeg failed; writer.errors.text has the reason.
bool write_jpeg(JpegWriter& writer, const PixelRows& picture, int quality) {
  if (setjmp(writer.errors.failed)) return false;
  writer.info.err = jpeg_std_error(&writer.errors.manager);
  writer.errors.manager.error_exit = on_error;
  writer.info.client_data = &writer.errors;
  jpeg_create_compress(&writer.info);
  jpeg_mem_dest(&writer.info, &writer.bytes, &writer.count);
  writer.info.image_height = static_cast<JDIMENSION>(picture.height);
  writer.info.image_width = static_cast<JDIMENSION>(picture.width);
  writer.info.input_components = 3;
  writer.info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&writer.info);
  jpeg_set_quality(&writer.info, quality, TRUE);
  writer.info.optimize_coding = TRUE;  // some percent smaller, which saves reading in every epoch
  jpeg_start_compress(&writer.info, TRUE);
  while (writer.info.next_scanline < writer.info.image_height) {
    JSAMPROW row = const_cast<std::uint8_t*>(picture.pixels) +
                   std::size_t{3} * writer.info.next_scanline * writer.info.image_width;
    jpeg_write_scanlines(&writer.info, &row, 1);
  }
  jpeg_finish_compress(&writer.info);
  return true;
}

[[noreturn]] void damaged(const std::string& source, const char* text) {
  fail(ExitCode::kUsage, "picture", "{}: cannot be decoded as JPEG: {}", source, text);
}

}  // namespace

bool is_jpeg(std::span<const std::uint8_t> file) {
  return file.size() >= 3 && file[0] == 0xFF && file[1] == 0xD8 && file[2] == 0xFF;
}

StoredPicture jpeg_header(std::span<const std::uint8_t> file, const std::string& source) {
  JpegReader reader;
  StoredPicture picture;
  if (!read_header(reader, file.data(), file.size(), &picture)) damaged(source, reader.errors.text);
  return picture;
}

void decode_jpeg(std::span<const std::uint8_t> file, const std::string& source,
                 const StoredRegion& region, DecodedRegion& out) {
  JpegReader reader;
  ScaledRegion scaled{};
  if (!begin_region(reader, file.data(), file.size(), &region, &scaled))
    damaged(source, reader.errors.text);
  out.top = scaled.top;
  out.left = scaled.left;
  out.height = scaled.height;
  out.width = scaled.width;
  out.pixels.resize(std::size_t{4} * scaled.height * scaled.width);
  if (!read_region(reader, &scaled, out.pixels.data())) damaged(source, reader.errors.text);
}

std::vector<std::uint8_t> encode_jpeg(const PixelRows& picture, const std::string& source,
                                      int quality) {
  JpegWriter writer;
  if (!write_jpeg(writer, picture, quality))
    fail(ExitCode::kUsage, "picture", "{}: {}×{} pixels cannot be written as JPEG: {}", source,
         picture.height, picture.width, writer.errors.text);
  return {writer.bytes, writer.bytes + writer.count};
}

}  // namespace starling
