// JPEG and PNG files, decoded whole, in part, and into a smaller picture.
#include "apps/pictures/picture.h"

#include <array>
#include <span>

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  static PictureDecoder decoder({.max_pixels = 1 << 20});
  std::array<std::uint8_t, 3 * 8 * 8> out{};
  const auto decode = [&](auto&& choose) {
    return fuzz::reads_or_refuses(
        [&] { decoder.decode(std::span(data, size), "fuzz", choose, 8, 8, 3, out.data()); });
  };
  decode([](const PictureSize& picture) {
    return PicturePart::window(0, 0, picture.height, picture.width);
  });
  return decode([](const PictureSize& picture) {
    return PicturePart::window(picture.height / 4, picture.width / 4,
                               picture.height - picture.height / 4,
                               picture.width - picture.width / 4);
  });
}
