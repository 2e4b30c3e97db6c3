// JPEG encoding by libjpeg-turbo. Its errors return by longjmp, so the function that calls it has
// no objects with destructors.
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "apps/pictures/picture.h"
#include "core/error.h"

// jpeglib.h needs <cstdio> before it.
#include <jpeglib.h>

namespace starling {
namespace {

struct JpegWriter {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  std::jmp_buf failed;
  unsigned char* bytes;  ///< allocated by libjpeg
  unsigned long count;
  char text[JMSG_LENGTH_MAX];
};

[[noreturn]] void on_encode_error(j_common_ptr info) {
  auto* writer = static_cast<JpegWriter*>(info->client_data);
  info->err->format_message(info, writer->text);
  std::longjmp(writer->failed, 1);
}

/// Returns false if libjpeg failed; writer.text has the reason.
bool write_jpeg(JpegWriter& writer, const PixelRows& picture, int quality) {
  if (setjmp(writer.failed)) return false;
  writer.info.err = jpeg_std_error(&writer.errors);
  writer.errors.error_exit = on_encode_error;
  writer.info.client_data = &writer;
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

struct WriterGuard {
  JpegWriter* writer;
  ~WriterGuard() {
    jpeg_destroy_compress(&writer->info);
    std::free(writer->bytes);
  }
};

}  // namespace

std::vector<std::uint8_t> encode_jpeg(const PixelRows& picture, const std::string& source,
                                      int quality) {
  JpegWriter writer;
  std::memset(&writer.info, 0, sizeof writer.info);
  writer.bytes = nullptr;
  writer.count = 0;
  const WriterGuard guard{&writer};
  if (!write_jpeg(writer, picture, quality))
    fail(ExitCode::kUsage, "picture", "{}: {}×{} pixels cannot be written as JPEG: {}", source,
         picture.height, picture.width, writer.text);
  return {writer.bytes, writer.bytes + writer.count};
}

}  // namespace starling
