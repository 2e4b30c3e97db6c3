#include <doctest/doctest.h>
#include <fmt/format.h>
#include <zlib.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/pictures/picture.h"
#include "core/config.h"
#include "core/error.h"
#include "core/operations/pictures.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/apps/data_test_support.h"

// Pictures against Pillow's: golden/make_pictures.py writes files of every kind and what Pillow
// makes of them.
using namespace starling;

namespace {

using Pixels = test::Bytes;

PartChoice all_of() {
  return [](const PictureSize& size) { return PicturePart::window(0, 0, size.height, size.width); };
}
PartChoice window_of(std::int64_t top, std::int64_t left, std::int64_t height, std::int64_t width) {
  return [=](const PictureSize&) { return PicturePart::window(top, left, height, width); };
}

struct GoldenPictures {
  nlohmann::json json = read_json_file("golden/pictures.json");
  std::vector<std::string> names;
  GoldenPictures() {
    for (const auto& [name, unused] : json["files"].items()) names.push_back(name);
  }
  static Pixels file(const std::string& name) {
    return read_picture_file("golden/pictures/" + name);
  }
};

Pixels decoded(const Pixels& file, const PartChoice& choose, std::int64_t height,
               std::int64_t width, std::int64_t channels = 3,
               const PictureSettings& settings = {}) {
  PictureDecoder decoder(settings);
  Pixels out(static_cast<std::size_t>(height * width * channels));
  decoder.decode(file, "it", choose, height, width, channels, out.data());
  return out;
}

std::string refusal_of(const Pixels& file, const PictureSettings& settings = {}) {
  return test::error_text(ExitCode::kUsage, [&] {
    PictureDecoder decoder(settings);
    Pixels out(3 * 8 * 8);
    decoder.decode(file, "pets/x.jpg", all_of(), 8, 8, 3, out.data());
  });
}

}  // namespace

namespace {

std::string big_endian(std::size_t number) {
  std::string bytes(4, '\0');
  for (int i = 3; i >= 0; --i, number >>= 8)
    bytes[static_cast<std::size_t>(i)] = static_cast<char>(number & 0xFF);
  return bytes;
}
std::string chunk(const std::string& type, const std::string& data) {
  const std::string body = type + data;
  return big_endian(data.size()) + body +
         big_endian(::crc32(0, reinterpret_cast<const Bytef*>(body.data()),
                            static_cast<uInt>(body.size())));
}
std::string packed(const std::string& text) {
  std::string bytes(text.size() + 100, '\0');
  uLongf size = bytes.size();
  ::compress(reinterpret_cast<Bytef*>(bytes.data()), &size,
             reinterpret_cast<const Bytef*>(text.data()), text.size());
  return bytes.substr(0, size);
}
/// EXIF data of one entry: the orientation as a number of this type.
std::string tiff(char type, const std::string& value) {
  return std::string("II*\0\x08\0\0\0\x01\0\x12\x01", 12) + type + std::string("\0\x01\0\0\0", 5) +
         value + std::string(4, '\0');
}

}  // namespace

// What counts where is as in Pillow's Image.getexif and ImageOps.exif_transpose.
TEST_CASE("pictures are turned wherever a file says how, and by the first of these that says it") {
  using namespace std::string_literals;
  const std::string six = tiff(3, "\6\0\0\0"s), three = tiff(3, "\3\0\0\0"s),
                    none = "II*\0\x08\0\0\0\0\0"s, prefix = "Exif\0\0"s;
  const std::string attribute = "<x:xmpmeta><rdf:Description tiff:Orientation=\"6\" a=\"\"/>",
                    element = "<tiff:Orientation>6</tiff:Orientation>";
  std::string digits = "\nexif\n      32\n";
  for (const char c : prefix + six)
    digits +=
        fmt::format("{:02x}", static_cast<unsigned char>(c)) + (digits.size() % 7 == 0 ? "\n" : "");
  const Pixels png = GoldenPictures::file("rgb8.png"), jpeg = GoldenPictures::file("420.jpg");
  const auto with = [](const Pixels& file, std::size_t at, const std::string& more) {
    Pixels result = file;
    result.insert(result.begin() + static_cast<std::ptrdiff_t>(at), more.begin(), more.end());
    return result;
  };
  // as 6 does: a row becomes a column, from the right on
  const auto turned = [](const Pixels& file) {
    const PictureSize size = PictureDecoder().size(file, "it");
    return decoded(file, all_of(), size.height, size.width);
  };
  const std::string itxt = "XML:com.adobe.xmp\0"s, raw = "Raw profile type exif\0"s;
  const std::vector<std::pair<std::string, std::string>> pngs{
      {"short", chunk("eXIf", six)},
      {"long", chunk("eXIf", tiff(4, "\6\0\0\0"s))},
      {"prefix", chunk("eXIf", prefix + six)},
      {"packed profile", chunk("zTXt", raw + "\0"s + packed(digits))},
      {"profile", chunk("tEXt", raw + digits)},
      {"XMP", chunk("iTXt", itxt + "\0\0\0\0"s + attribute)},
      {"packed XMP", chunk("iTXt", itxt + "\1\0en\0XMP\0"s + packed(element))},
      {"EXIF before XMP",
       chunk("iTXt", itxt + "\0\0\0\0"s + "tiff:Orientation=\"3\"") + chunk("eXIf", six)},
      {"XMP where EXIF says nothing",
       chunk("eXIf", none) + chunk("iTXt", itxt + "\0\0\0\0"s + element)},
      {"the first", chunk("eXIf", six) + chunk("eXIf", three)},
      {"not a damaged one", chunk("eXIf", three).replace(20, 1, "!") + chunk("eXIf", six)}};
  const Pixels expected_png = turned(with(png, 33, chunk("eXIf", six)));
  CHECK(expected_png != turned(png));
  for (const auto& [name, chunks] : pngs) {
    CAPTURE(name);
    CHECK(turned(with(png, 33, chunks)) == expected_png);
    CHECK(turned(with(png, png.size() - 12, chunks)) == expected_png);  // after the pixels
  }
  const auto segment = [](const std::string& data) {
    return "\xFF\xE1"s + big_endian(data.size() + 2).substr(2) + data;
  };
  const std::string xmp = "http://ns.adobe.com/xap/1.0/\0"s;
  const std::vector<std::pair<std::string, std::string>> jpegs{
      {"long", segment(prefix + tiff(4, "\6\0\0\0"s))},
      {"XMP", segment(xmp + attribute)},
      {"EXIF before XMP", segment(xmp + "tiff:Orientation=\"3\"") + segment(prefix + six)},
      {"XMP where EXIF says nothing", segment(prefix + none) + segment(xmp + element)}};
  for (const auto& [name, segments] : jpegs) {
    CAPTURE(name);
    CHECK(turned(with(jpeg, 2, segments)) == turned(with(jpeg, 2, segment(prefix + six))));
  }
  // Nonsense turns nothing, and no length of it is read beyond.
  for (const std::string& odd :
       {tiff(3, "\0\0\0\0"s), tiff(3, "\x09\0\0\0"s), tiff(12, "\6\0\0\0"s), tiff(1, "\6\0\0\0"s),
        "MM\0*\xFF\xFF\xFF\xFF"s}) {
    for (std::size_t length = 0; length <= odd.size(); ++length) {
      CHECK(turned(with(png, 33, chunk("eXIf", odd.substr(0, length)))) == turned(png));
      CHECK(turned(with(png, 33,
                        chunk("tEXt", (raw + digits).substr(0, length)) +
                            chunk("iTXt", itxt.substr(0, length)))) == turned(png));
    }
  }
}

TEST_CASE("pictures of every kind are what Pillow makes of them") {
  const GoldenPictures golden;
  PictureDecoder decoder;
  for (const std::string& name : golden.names) {
    CAPTURE(name);
    const nlohmann::json& expected = golden.json["files"][name];
    const std::int64_t height = expected["height"], width = expected["width"];
    const Pixels file = GoldenPictures::file(name);
    CHECK(decoder.size(file, name) == PictureSize{height, width});
    const Pixels pixels = decoded(file, all_of(), height, width);
    CHECK(crc32(0, pixels.data(), static_cast<uInt>(pixels.size())) ==
          expected["crc"].get<unsigned long>());
  }
}

TEST_CASE("resized pictures are within a grey level of Pillow's") {
  const GoldenPictures golden;
  const Pixels file = GoldenPictures::file("444.jpg");
  for (const nlohmann::json& made : golden.json["resized"]) {
    const std::string filter = made["filter"], digits = made["pixels"];
    const auto box = made["box"].get<std::vector<std::int64_t>>(),
               size = made["size"].get<std::vector<std::int64_t>>();
    CAPTURE(filter);
    CAPTURE(box);
    Pixels expected;
    for (std::size_t i = 0; i < digits.size(); i += 2)
      expected.push_back(static_cast<std::uint8_t>(std::stoi(digits.substr(i, 2), nullptr, 16)));
    PictureSettings settings{.interpolation = interpolation_of(filter), .scaled_decoding = false};
    const auto choose = window_of(box[1], box[0], box[3] - box[1], box[2] - box[0]);
    CHECK(test::largest_gap(decoded(file, choose, size[1], size[0], 3, settings), expected) <=
          (filter == "nearest" ? 0 : 1));
  }
}

TEST_CASE("a crop that is decoded alone has the bits of the whole picture") {
  for (const char* name : {"420.jpg", "422.jpg", "progressive.jpg", "cmyk.jpg", "turned6.jpg",
                           "turned3.jpg", "rgb8.png", "rgb8i.png"}) {
    CAPTURE(name);
    const Pixels file = GoldenPictures::file(name);
    PictureDecoder decoder;
    const PictureSize size = decoder.size(file, name);
    const Pixels whole = decoded(file, all_of(), size.height, size.width);
    for (const std::int64_t top : {0, 1, 7, 12}) {
      for (const std::int64_t left : {0, 3, 11}) {
        const std::int64_t height = 9, width = 13;
        const Pixels crop = decoded(file, window_of(top, left, height, width), height, width);
        Pixels expected;
        for (std::int64_t y = top; y < top + height; ++y) {
          const auto row = whole.begin() + 3 * (y * size.width + left);
          expected.insert(expected.end(), row, row + 3 * width);
        }
        CHECK(crop == expected);
      }
    }
  }
}

TEST_CASE("the centre of a test picture is torchvision's Resize and CenterCrop") {
  const PicturePart part = PicturePart::centre({375, 500}, 256, 224, 224);
  CHECK(part.top == 0);
  CHECK(part.width == 500);
  const double step_y = 375.0 / 256.0, step_x = 500.0 / 341.0;  // int(256 * 500 / 375) = 341
  CHECK(part.box_top == doctest::Approx(16 * step_y));
  CHECK(part.box_left == doctest::Approx(58 * step_x));  // round(58.5) to even
  CHECK(part.box_height == doctest::Approx(224 * step_y));
  CHECK(part.box_width == doctest::Approx(224 * step_x));
  // What is cut out is larger than what is left: the picture is enlarged instead of padded.
  const PicturePart small = PicturePart::centre({10, 40}, 5, 8, 8);
  CHECK(small.box_height == doctest::Approx(10.0));
  CHECK(small.box_left >= 0.0);
  CHECK(small.box_left + small.box_width <= 40.0);
}

TEST_CASE("a picture decoded at a fraction of its size is near the one that is not") {
  const Pixels file = GoldenPictures::file("444.jpg");
  for (const std::int64_t side : {22, 11}) {
    const Pixels scaled = decoded(file, window_of(0, 0, 45, 45), side, side);
    const Pixels exact =
        decoded(file, window_of(0, 0, 45, 45), side, side, 3, {.scaled_decoding = false});
    double sum = 0.0;
    for (std::size_t i = 0; i < exact.size(); ++i) sum += std::abs(int{scaled[i]} - int{exact[i]});
    CHECK(sum / static_cast<double>(exact.size()) < 6.0);
    CHECK(scaled != exact);
  }
}

TEST_CASE("one channel is the luma of the colours") {
  const Pixels file = GoldenPictures::file("rgb8.png");
  const Pixels colours = decoded(file, all_of(), 21, 27), grey = decoded(file, all_of(), 21, 27, 1);
  for (std::size_t i = 0; i < grey.size(); ++i) {
    const double luma =
        0.299 * colours[3 * i] + 0.587 * colours[3 * i + 1] + 0.114 * colours[3 * i + 2];
    CHECK(std::abs(luma - grey[i]) <= 0.51);
  }
}

TEST_CASE("what is no picture, or not whole, is refused by name") {
  CHECK(refusal_of({}) == "[picture] pets/x.jpg: is empty");
  CHECK(refusal_of({'h', 'e', 'l', 'l', 'o'}) ==
        "[picture] pets/x.jpg: is neither JPEG nor PNG by its first bytes");
  for (const char* name : {"420.jpg", "progressive.jpg", "rgb8.png", "palette4i.png"}) {
    const Pixels file = GoldenPictures::file(name);
    for (std::size_t length = 4; length < file.size() - 30; length += 7) {
      CAPTURE(name);
      CAPTURE(length);
      const std::string text =
          refusal_of(Pixels(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(length)));
      CHECK(text.starts_with("[picture] pets/x.jpg: "));
    }
  }
  const Pixels png = GoldenPictures::file("rgb8.png");
  CHECK(test::contains(refusal_of({png.begin(), png.begin() + 100}), "it ends early"));
  CHECK(refusal_of(GoldenPictures::file("420.jpg"), {.max_pixels = 45 * 61 - 1}) ==
        "[picture] pets/x.jpg: is 45×61 pixels, more than the 2744 that max_pixels allows");
  CHECK(refusal_of(GoldenPictures::file("420.jpg"), {.max_pixels = 45 * 61}).empty());
  CHECK_THROWS_WITH_AS(read_picture_file("golden/no.jpg"),
                       "[picture] golden/no.jpg: cannot be read: No such file or directory", Error);
  CHECK_THROWS_WITH_AS(read_picture_file("golden"),
                       "[picture] golden: cannot be read: it is a folder, not a regular file",
                       Error);
  CHECK_THROWS_WITH_AS(
      read_picture_file("golden/pictures/420.jpg", 100),
      "[picture] golden/pictures/420.jpg: has more than 100 bytes, which is no picture", Error);
  CHECK_THROWS_AS((void)interpolation_of("bilinar"), Error);
}

namespace {

/// Takes a part's pixels, where they are no more than `most` bytes.
class Kept final : public CutTarget {
 public:
  explicit Kept(std::int64_t most, std::int64_t image) : most_(most), image_(image) {}
  std::uint8_t* take(std::int64_t bytes) override {
    if (bytes > most_ && bytes != image_) return nullptr;
    pixels.resize(static_cast<std::size_t>(bytes));
    return pixels.data();
  }
  Pixels pixels;

 private:
  std::int64_t most_, image_;
};

/// What a backend makes of it.
Pixels resized(CpuBackend& backend, const Kept& kept, std::int64_t height, std::int64_t width) {
  const Tensor x(backend, Shape{static_cast<std::int64_t>(kept.pixels.size())}, DType::kUInt8);
  const Tensor parts(backend, Shape{1, kCutPictureNumbers}, DType::kInt32),
      y(backend, Shape{1, height, width, 3}, DType::kUInt8);
  std::memcpy(x.raw(), kept.pixels.data(), kept.pixels.size());
  std::memcpy(parts.raw(), &kept.cut, sizeof kept.cut);
  backend.resize_pictures({.x = x, .parts = parts, .y = y});
  const auto* made = y.data<std::uint8_t>();
  return {made, made + y.elements()};
}

}  // namespace

TEST_CASE("what a decoder leaves to another to resize becomes its own image, to the bit") {
  const GoldenPictures golden;
  CpuBackend backend;
  const PartChoice centre = [](const PictureSize& size) {
    return PicturePart::centre(size, 20, 16, 12);
  };
  const std::vector<std::pair<const char*, PartChoice>> parts = {
      {"all", all_of()},
      {"crop", window_of(3, 5, 17, 11)},
      {"the image's size", window_of(2, 1, 16, 12)},
      {"centre", centre}};
  int left = 0, enlarged = 0, turned = 0;
  for (const std::string& name : golden.names) {
    const Pixels file = GoldenPictures::file(name);
    for (const Interpolation interpolation :
         {Interpolation::kNearest, Interpolation::kBilinear, Interpolation::kBicubic}) {
      for (const auto& [what, part] : parts) {
        for (const auto& [height, width] :
             {std::pair<std::int64_t, std::int64_t>{16, 12}, {50, 70}, {6, 40}}) {
          // its box is made for one size
          if (std::string(what) == "centre" && height != 16) continue;
          CAPTURE(name);
          CAPTURE(what);
          CAPTURE(height);
          CAPTURE(static_cast<int>(interpolation));
          const PictureSettings settings{.interpolation = interpolation};
          const Pixels expected = decoded(file, part, height, width, 3, settings);
          for (const std::int64_t most : {1 << 20, 0}) {
            PictureDecoder decoder(settings);
            Kept kept(most, 3 * height * width);
            decoder.decode(file, name, part, height, width, kept);
            REQUIRE(kept.pixels.size() ==
                    static_cast<std::size_t>(3 * kept.cut.height * kept.cut.width));
            CHECK(resized(backend, kept, height, width) == expected);
            if (most == 0)
              CHECK(
                  (kept.pixels == expected || kept.cut.height * kept.cut.width == height * width));
            left += kept.pixels != expected;
            enlarged += kept.pixels.size() < expected.size();
            turned += kept.cut.turn != 0;
          }
        }
      }
    }
  }
  CHECK(left > 500);
  CHECK(enlarged > 100);
  CHECK(turned > 50);
}

TEST_CASE(
    "a part that shrinks to less than a quarter is resized at once, and so are pixels in memory") {
  Pixels picture(3 * 90 * 80);
  for (std::size_t i = 0; i < picture.size(); ++i)
    picture[i] = static_cast<std::uint8_t>(i * 7919 >> 3);
  CpuBackend backend;
  PictureDecoder decoder({.interpolation = Interpolation::kBicubic});
  for (const std::int64_t side : {10, 19, 20, 24, 60}) {
    CAPTURE(side);
    Pixels expected(static_cast<std::size_t>(3 * side * side));
    decoder.cut({picture.data(), 90, 80}, "it", window_of(5, 0, 80, 80), side, side,
                expected.data());
    Kept kept(1 << 20, 3 * side * side);
    decoder.cut({picture.data(), 90, 80}, "it", window_of(5, 0, 80, 80), side, side, kept);
    CHECK((kept.pixels == expected) == (side < 20));
    CHECK(resized(backend, kept, side, side) == expected);
  }
}
