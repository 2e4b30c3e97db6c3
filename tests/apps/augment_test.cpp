// Changes of single images: torchvision's numbers (golden/make_augmentations.py), and what is drawn
// at random.
#include "apps/data/augment.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "apps/data/loader.h"
#include "core/operations/pictures.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/pixels.h"
#include "tests/apps/data_test_support.h"
#include "tests/kernels/instruction_sets.h"
#include "tests/support/base64.h"

namespace starling::augment_tests {

using test::Bytes;
using test::contains;
using test::from_base64;

struct OwnedImage {
  Shape shape;
  Bytes bytes;
  ImageBytes view() { return {bytes.data(), shape[0], shape[1], shape[2]}; }
};
OwnedImage random_image(const Shape& shape, std::uint64_t seed = 1) {
  OwnedImage image{shape, Bytes(static_cast<std::size_t>(shape.elements()))};
  for (std::size_t i = 0; i < image.bytes.size(); ++i)
    image.bytes[i] = static_cast<std::uint8_t>(philox(seed, i, 0).v[0] >> 24);
  return image;
}

Augmenters augmenters(const nlohmann::json& keys, const Shape& image = Shape{32, 32, 3}) {
  return test::augmenters_from(keys, image);
}
std::string refusal(const nlohmann::json& keys, const Shape& image = Shape{32, 32, 3}) {
  return test::error_of(ExitCode::kUsage, [&] { augmenters(keys, image); });
}

/// An operation by torchvision's name.
PixelStep step_named(const std::string& name, double value, const Shape& image) {
  if (name == "ShearX" || name == "shear_x")
    return pixel_steps::transform(PixelMap::shear_x(value));
  if (name == "ShearY" || name == "shear_y")
    return pixel_steps::transform(PixelMap::shear_y(value));
  if (name == "TranslateX" || name == "translate_x")
    return pixel_steps::transform(PixelMap::translate(std::trunc(value), 0));
  if (name == "TranslateY" || name == "translate_y")
    return pixel_steps::transform(PixelMap::translate(0, std::trunc(value)));
  if (name == "Rotate" || name == "rotate")
    return pixel_steps::transform(PixelMap::rotate(value, image[0], image[1]));
  if (name == "brightness") return pixel_steps::brightness(value);
  if (name == "contrast") return pixel_steps::contrast(value);
  if (name == "saturation") return pixel_steps::saturation(value);
  if (name == "hue") return pixel_steps::hue(value);
  if (name == "sharpness") return pixel_steps::sharpness(value);
  if (name == "Brightness") return pixel_steps::brightness(1 + value);
  if (name == "Contrast") return pixel_steps::contrast(1 + value);
  if (name == "Color") return pixel_steps::saturation(1 + value);
  if (name == "Sharpness") return pixel_steps::sharpness(1 + value);
  if (name == "Posterize" || name == "posterize")
    return pixel_steps::posterize(static_cast<int>(value));
  if (name == "Solarize" || name == "solarize") return pixel_steps::solarize(value);
  if (name == "AutoContrast" || name == "autocontrast") return pixel_steps::autocontrast();
  if (name == "Equalize" || name == "equalize") return pixel_steps::equalize();
  if (name == "reflect") return pixel_steps::window(-5, 3, value != 0.0, true);
  REQUIRE(name == "Identity");
  return {};
}

TEST_CASE("apps/augment: operations on images are torchvision's within a grey level") {
  const nlohmann::json golden = read_json_file("golden/augmentations.json");
  std::map<std::string, OwnedImage> images;
  for (const auto& [name, image] : golden["images"].items()) {
    const auto shape = image["shape"].get<std::vector<std::int64_t>>();
    images[name] = {Shape{shape[0], shape[1], shape[2]}, from_base64(image["bytes"])};
  }
  std::set<std::string> operations;
  for (const auto& one : golden["cases"]) {
    const std::string name = one["operation"];
    CAPTURE(one["image"].get<std::string>());
    CAPTURE(name);
    CAPTURE(one["value"].get<double>());
    OwnedImage image = images.at(one["image"]);
    change_pixels(image.view(), step_named(name, one["value"], image.shape));
    const bool moves = name == "reflect" || name == "rotate" || name.starts_with("shear") ||
                       name.starts_with("translate");
    CHECK(test::largest_gap(image.bytes, from_base64(one["bytes"])) <= (moves ? 0 : 1));
    operations.insert(name);
  }
  CHECK(operations.size() == 15);
}

TEST_CASE("apps/augment: a hue turned back by less than fp32 tells is not turned") {
  CHECK(pixel_steps::hue(-1e-9).numbers[0] == pixel_steps::hue(0.0).numbers[0]);
}

TEST_CASE("apps/augment: operations have the same bits on every instruction set") {
  const OwnedImage before = random_image({23, 37, 3});
  std::vector<PixelStep> steps{pixel_steps::brightness(1.4), pixel_steps::contrast(0.3),
                               pixel_steps::saturation(1.7), pixel_steps::sharpness(0.2),
                               pixel_steps::solarize(77.0),  pixel_steps::posterize(4),
                               pixel_steps::autocontrast(),  pixel_steps::equalize()};
  for (const double turn : {0.0, 0.06, 0.48, -0.02}) steps.push_back(pixel_steps::hue(turn));
  for (const PixelStep& step : steps) {
    CAPTURE(static_cast<int>(step.change));
    const auto changed = [&](cpu::Isa isa) {
      Bytes bytes(before.bytes.size());
      cpu::change_image({.height = 23,
                         .width = 37,
                         .channels = 3,
                         .steps = &step,
                         .most = 1,
                         .x = before.bytes.data(),
                         .y = bytes.data()},
                        isa);
      return bytes;
    };
    for (const cpu::Isa isa : tests::instruction_sets())
      CHECK(changed(isa) == changed(cpu::Isa::kScalar));
  }
}

TEST_CASE("apps/augment: steps that are left to the backend give the bits of those done at once") {
  const nlohmann::json jitter{
      {"brightness", 0.6}, {"contrast", 0.6}, {"saturation", 0.9}, {"hue", 0.5}};
  CpuBackend backend;
  for (const nlohmann::json& keys :
       {nlohmann::json{{"crop_padding", 3}, {"flip", true}, {"color_jitter", jitter}},
        nlohmann::json{{"rand_augment", {{"n", 4}, {"magnitude", 25}}}, {"crop_padding", 2}},
        nlohmann::json{{"trivial_augment", true}, {"padding_mode", "reflect"}, {"crop_padding", 3}},
        nlohmann::json{{"random_resized_crop", nlohmann::json::object()},
                       {"trivial_augment", true}},
        nlohmann::json{{"random_resized_crop", nlohmann::json::object()},
                       {"interpolation", "bicubic"}},
        nlohmann::json{{"random_resized_crop", nlohmann::json::object()},
                       {"interpolation", "nearest"}}}) {
    CAPTURE(keys.dump());
    for (const Shape& shape : {Shape{32, 32, 3}, Shape{17, 90, 3}, Shape{9, 8, 1}}) {
      if (shape[2] == 1 && keys.contains("color_jitter")) continue;
      CAPTURE(shape.text());
      register_builtin_augmentations();
      ConfigSection section(keys, "test.json");
      section.choice("interpolation", "bilinear", interpolation_names(), "");
      const Augmenters all = read_augmenters(section, shape);
      const std::int64_t most = steps_of(all, false);
      REQUIRE(most > 0);
      constexpr std::int64_t kImages = 60;
      const Tensor x(backend, shape.with_batch(kImages), DType::kUInt8),
          scratch(backend, x.shape(), DType::kUInt8), y(backend, x.shape(), DType::kUInt8),
          steps(backend, {kImages, most, kPixelStepNumbers}, DType::kInt32);
      std::int64_t left = 0;
      for (std::int64_t i = 0; i < kImages; ++i) {
        OwnedImage at_once = random_image(shape, static_cast<std::uint64_t>(i)), later = at_once;
        auto* own = reinterpret_cast<PixelStep*>(steps.data<std::int32_t>()) + i * most;
        const Augmentation window = ImageChange(all, 3, 1)(i, at_once.bytes, shape);
        CHECK(ImageChange(all, 3, 1)(i, later.bytes, shape, false, {},
                                     std::span(own, static_cast<std::size_t>(most))) == window);
        CHECK(later.bytes == random_image(shape, static_cast<std::uint64_t>(i)).bytes);
        left += own->change != PixelChange::kNone;
        std::copy(later.bytes.begin(), later.bytes.end(),
                  x.data<std::uint8_t>() + i * shape.elements());
        std::copy(at_once.bytes.begin(), at_once.bytes.end(),
                  scratch.data<std::uint8_t>() + i * shape.elements());
      }
      CHECK(left > kImages / 2);
      const Bytes expected(scratch.data<std::uint8_t>(),
                           scratch.data<std::uint8_t>() + scratch.shape().elements());
      backend.change_pixels({.x = x, .steps = steps, .scratch = scratch, .y = y});
      CHECK(std::memcmp(y.raw(), expected.data(), expected.size()) == 0);
    }
  }
}

TEST_CASE(
    "apps/augment: whoever looks at the bytes sees what was left to the device, and so do steps "
    "that find no room") {
  const Shape shape{6, 5, 3};
  OwnedImage image = random_image(shape), expected = image;
  std::vector<PixelStep> later(2);
  AugmentedImage changed(image.bytes, shape, {}, later);
  const std::vector<PixelStep> steps{pixel_steps::brightness(0.5), pixel_steps::window(1, 1, true),
                                     pixel_steps::solarize(40.0), pixel_steps::equalize()};
  changed.change(steps[0]);
  CHECK(image.bytes == expected.bytes);
  CHECK(later[0].change == PixelChange::kScale);
  change_pixels(expected.view(), steps[0]);
  CHECK(std::equal(expected.bytes.begin(), expected.bytes.end(), changed.bytes().begin()));
  CHECK(later[0].change == PixelChange::kNone);
  for (std::size_t i = 1; i < steps.size(); ++i) {
    changed.change(steps[i]);
    change_pixels(expected.view(), steps[i]);
  }
  CHECK(image.bytes == expected.bytes);  // the third of these found both places taken
  CHECK(later[0].change == PixelChange::kNone);
}

/// What rand_augment or trivial_augment does to an image, from torchvision's list.
void check_list(const nlohmann::json& list, const nlohmann::json& keys, const Shape& shape,
                int operations, std::uint32_t first_draw, std::optional<std::size_t> magnitude) {
  const Augmenters drawn = augmenters(keys, shape);
  std::map<std::string, int> counts;
  for (std::int64_t sample = 0; sample < 600; ++sample) {
    OwnedImage image = random_image(shape, static_cast<std::uint64_t>(sample)), expected = image;
    ImageChange(drawn, 9, 2)(sample, image.bytes, shape);
    std::string done;
    for (int i = 0; i < operations; ++i) {
      const Philox4x32 bits =
          SampleRandom{9, 2, sample}.draw(first_draw + static_cast<std::uint32_t>(i));
      const nlohmann::json& entry = list[static_cast<std::size_t>(
          random_below(bits.v[0], static_cast<std::int64_t>(list.size())))];
      double value = 0.0;
      if (!entry["magnitudes"].empty())
        value = entry["magnitudes"]
                     [magnitude.value_or(static_cast<std::size_t>(random_below(bits.v[2], 31)))];
      // Its magnitudes are of fp32: 16 pixels may be 15.9999, which it takes as 15.
      if (std::abs(value - std::round(value)) < 1e-5) value = std::round(value);
      if (entry["signed"].get<bool>() && random_below(bits.v[1], 2) == 1) value = -value;
      change_pixels(expected.view(), step_named(entry["operation"], value, shape));
      done += entry["operation"].get<std::string>() + " ";
      ++counts[entry["operation"]];
    }
    CAPTURE(done);
    // A number may fall on the other side of a whole one, and a second operation may double that.
    int far = 0;
    for (std::size_t k = 0; k < image.bytes.size(); ++k)
      far += std::abs(int{image.bytes[k]} - int{expected.bytes[k]}) > 2;
    CHECK(far <= static_cast<int>(image.bytes.size()) / 200);
  }
  CHECK(counts.size() == 14);
  const double mean = 600.0 * operations / 14;
  for (const auto& [name, count] : counts) CHECK(std::abs(count - mean) < 5 * std::sqrt(mean));
}

TEST_CASE("apps/augment: rand_augment and trivial_augment draw from torchvision's lists") {
  const nlohmann::json golden = read_json_file("golden/augmentations.json");
  const Shape shape{24, 40, 3};
  for (const std::size_t magnitude : {9UL, 30UL}) {
    check_list(golden["rand_augment"]["list"],
               {{"rand_augment", {{"n", 1}, {"magnitude", magnitude}}}}, shape, 1, kAutoAugmentDraw,
               magnitude);
  }
  check_list(golden["rand_augment"]["list"], {{"rand_augment", nlohmann::json::object()}}, shape, 2,
             kAutoAugmentDraw, 9);
  check_list(golden["trivial_augment"]["list"], {{"trivial_augment", true}}, shape, 1,
             kAutoAugmentDraw + 48, std::nullopt);
}

TEST_CASE("apps/augment: color_jitter draws its factors evenly, in any order") {
  // On one grey level v, brightness alone says its factor.
  const Shape shape{2, 2, 3};
  const Augmenters jitter = augmenters({{"color_jitter", {{"brightness", 0.4}}}}, shape);
  double sum = 0.0, least = 9.0, most = 0.0;
  constexpr int kSamples = 4000;
  for (std::int64_t sample = 0; sample < kSamples; ++sample) {
    Bytes bytes(12, 150);
    ImageChange(jitter, 1, 0)(sample, bytes, shape);
    const double factor = bytes[0] / 150.0;
    sum += factor;
    least = std::min(least, factor);
    most = std::max(most, factor);
  }
  CHECK(sum / kSamples == doctest::Approx(1.0).epsilon(0.015));
  CHECK(least == doctest::Approx(0.6).epsilon(0.02));
  CHECK(most == doctest::Approx(1.4).epsilon(0.02));

  // A list is the range itself.
  const Augmenters dark = augmenters({{"color_jitter", {{"brightness", {0.5, 0.5}}}}}, shape);
  Bytes bytes(12, 150);
  ImageChange(dark, 1, 0)(3, bytes, shape);
  CHECK(bytes[0] == 75);

  // Black and white out of brightness and contrast depend on which comes first; both orders occur
  // half the time.
  const Augmenters both =
      augmenters({{"color_jitter", {{"brightness", {0.5, 0.5}}, {"contrast", {2.0, 2.0}}}}}, shape);
  const OwnedImage before = random_image(shape, 5);
  OwnedImage first = before, second = before;
  change_pixels(first.view(), pixel_steps::brightness(0.5));
  change_pixels(first.view(), pixel_steps::contrast(2.0));
  change_pixels(second.view(), pixel_steps::contrast(2.0));
  change_pixels(second.view(), pixel_steps::brightness(0.5));
  REQUIRE(first.bytes != second.bytes);
  int brightness_first = 0;
  for (std::int64_t sample = 0; sample < 1000; ++sample) {
    OwnedImage image = before;
    ImageChange(both, 1, 0)(sample, image.bytes, shape);
    REQUIRE((image.bytes == first.bytes || image.bytes == second.bytes));
    brightness_first += image.bytes == first.bytes;
  }
  CHECK(brightness_first > 420);
  CHECK(brightness_first < 580);
}

TEST_CASE("apps/augment: colours are changed of what is seen after crop and flip") {
  const Shape shape{9, 7, 3};
  const Augmenters keys = augmenters({{"crop_padding", 3},
                                      {"flip", true},
                                      {"color_jitter", {{"contrast", {1.5, 1.5}}}},
                                      {"cutout", 2}},
                                     shape);
  REQUIRE(keys.size() == 4);
  const Augmenters window_alone = augmenters({{"crop_padding", 3}, {"flip", true}}, shape);
  for (std::int64_t sample = 0; sample < 50; ++sample) {
    OwnedImage image = random_image(shape, static_cast<std::uint64_t>(sample)), plain = image;
    std::array<ErasedBox, 1> boxes;
    const Augmentation left = ImageChange(keys, 4, 1)(sample, image.bytes, shape, false, boxes);
    CHECK(left == Augmentation{3, 3, 0});
    const Augmentation window = ImageChange(window_alone, 4, 1)(sample, plain.bytes, shape);
    OwnedImage seen{shape, Bytes(plain.bytes.size())};
    for (std::int64_t y = 0; y < 9; ++y) {
      for (std::int64_t x = 0; x < 7; ++x) {
        const std::int64_t from_y = y + window.offset_y - 3,
                           from_x = (window.flip ? 6 - x : x) + window.offset_x - 3;
        if (from_y < 0 || from_y >= 9 || from_x < 0 || from_x >= 7) continue;
        for (std::int64_t c = 0; c < 3; ++c)
          seen.bytes[static_cast<std::size_t>((y * 7 + x) * 3 + c)] =
              plain.bytes[static_cast<std::size_t>((from_y * 7 + from_x) * 3 + c)];
      }
    }
    change_pixels(seen.view(), pixel_steps::contrast(1.5));
    CHECK(image.bytes == seen.bytes);
  }
}

TEST_CASE("apps/augment: an alternating flip mirrors every image in every second epoch") {
  const Augmenters alternating = augmenters({{"flip", "alternating"}}),
                   random = augmenters({{"flip", true}});
  int first = 0;
  for (std::int64_t sample = 0; sample < 1000; ++sample) {
    const auto flip = [&](const Augmenters& which, std::int64_t epoch) {
      return ImageChange(which, 6, epoch)(sample, {}, Shape{32, 32, 3}).flip;
    };
    first += flip(alternating, 0);
    CHECK(flip(alternating, 0) == flip(random, 0));
    for (std::int64_t epoch = 0; epoch < 6; ++epoch)
      REQUIRE(flip(alternating, epoch) + flip(alternating, epoch + 1) == 1);
  }
  CHECK(first > 420);
  CHECK(first < 580);
  CHECK(augmenters({{"flip", false}}).empty());
}

TEST_CASE(
    "apps/augment: crops of a reflected image show it mirrored at its outermost pixels, every "
    "window alike") {
  const Shape shape{5, 5, 1};
  const Augmenters reflect = augmenters({{"crop_padding", 3}, {"padding_mode", "reflect"}}, shape);
  CHECK(padding_of(reflect) == 0);
  const OwnedImage before = random_image(shape, 3);
  std::map<Bytes, int> counts;
  for (std::int64_t sample = 0; sample < 4900; ++sample) {
    OwnedImage image = before;
    CHECK(ImageChange(reflect, 2, 0)(sample, image.bytes, shape) == Augmentation{});
    ++counts[image.bytes];
  }
  CHECK(counts.size() == 49);
  for (const auto& [bytes, count] : counts) CHECK(std::abs(count - 100) < 60);
  for (std::int64_t top = -3; top <= 3; ++top) {
    for (std::int64_t left = -3; left <= 3; ++left) {
      Bytes expected;
      for (std::int64_t y = top; y < top + 5; ++y) {
        for (std::int64_t x = left; x < left + 5; ++x) {
          const std::int64_t from_y = y < 0   ? -y
                                      : y > 4 ? 8 - y
                                              : y,
                             from_x = x < 0   ? -x
                                      : x > 4 ? 8 - x
                                              : x;
          expected.push_back(before.bytes[static_cast<std::size_t>(from_y * 5 + from_x)]);
        }
      }
      CHECK(counts.contains(expected));
    }
  }
}

// Areas, shapes and places are drawn_augment_test.cpp's.
TEST_CASE("apps/augment: random_erasing takes the wanted share of images") {
  const Shape shape{32, 24, 3};
  const Augmenters erasing =
      augmenters({{"random_erasing",
                   {{"p", 0.3}, {"scale", {0.1, 0.2}}, {"ratio", {0.5, 2.0}}, {"value", 1.5}}}},
                 shape);
  REQUIRE(erased_values(erasing) == std::vector<double>{1.5});
  int erased = 0;
  constexpr int kSamples = 4000;
  for (std::int64_t sample = 0; sample < kSamples; ++sample) {
    std::array<ErasedBox, 1> boxes{ErasedBox{9, 9, 9, 9}};
    ImageChange(erasing, 7, 0)(sample, {}, shape, false, boxes);
    erased += boxes[0].bottom != 0;
  }
  CHECK(std::abs(erased - kSamples * 0.3) < 5 * std::sqrt(kSamples * 0.21));
}

TEST_CASE(
    "apps/augment: cutout takes a square with its centre on any pixel, and leaves what lies "
    "outside") {
  const Shape shape{6, 5, 3};
  const Augmenters cutout = augmenters({{"cutout", 3}}, shape);
  std::map<std::array<std::int32_t, 4>, int> counts;
  for (std::int64_t sample = 0; sample < 3000; ++sample) {
    std::array<ErasedBox, 1> boxes;
    ImageChange(cutout, 8, 0)(sample, {}, shape, false, boxes);
    ++counts[{boxes[0].top, boxes[0].left, boxes[0].bottom, boxes[0].right}];
  }
  CHECK(counts.size() == 30);
  for (std::int64_t y = 0; y < 6; ++y) {
    for (std::int64_t x = 0; x < 5; ++x) {
      const auto low = [](std::int64_t at) {
        return static_cast<std::int32_t>(std::max<std::int64_t>(at - 1, 0));
      };
      const auto high = [](std::int64_t at, std::int64_t size) {
        return static_cast<std::int32_t>(std::min(at + 2, size));
      };
      CHECK(std::abs(counts[{low(y), low(x), high(y, 6), high(x, 5)}] - 100) < 60);
    }
  }
}

TEST_CASE("apps/augment: erased numbers are those after normalising, in every format") {
  const test::NumberedDataset dataset(8, 1);
  const LoaderSettings settings{
      .shuffle = false, .augment = augmenters({{"flip", true}}, Shape{6, 5, 3}), .batch_size = 8};
  LoaderSettings erased = settings;
  erased.augment =
      augmenters({{"flip", true}, {"cutout", 2}, {"random_erasing", {{"p", 1}, {"value", -1.5}}}},
                 Shape{6, 5, 3});
  test::MemoryBackend backend;
  const auto check = [&]<class T>(T) {
    Loader plain(dataset, settings, backend, DTypeOf<T>::value),
        other(dataset, erased, backend, DTypeOf<T>::value);
    const auto before = plain.next()["image"].template span<T>(),
               after = other.next()["image"].template span<T>();
    for (std::int64_t i = 0; i < 8; ++i) {
      std::array<ErasedBox, 2> boxes;
      Bytes bytes(90);
      ImageChange(erased.augment, 1, 0)(i, bytes, Shape{6, 5, 3}, false, boxes);
      CHECK(boxes[1].bottom > 0.0F);
      for (std::int64_t k = 0; k < 90; ++k) {
        const std::int64_t y = k / 15, x = k % 15 / 3;
        double expected =
            static_cast<double>(static_cast<float>(before[static_cast<std::size_t>(i * 90 + k)]));
        for (std::size_t b = 0; b < 2; ++b) {
          if (y >= boxes[b].top && y < boxes[b].bottom && x >= boxes[b].left && x < boxes[b].right)
            expected = b == 0 ? 0.0 : -1.5;
        }
        REQUIRE(static_cast<double>(
                    static_cast<float>(after[static_cast<std::size_t>(i * 90 + k)])) == expected);
      }
    }
  };
  check(float{});
  check(BFloat16{});
}

TEST_CASE("apps/augment: what does not suit is refused by its key") {
  const Shape grey{28, 28, 1}, two{28, 28, 2};
  CHECK(contains(refusal({{"color_jitter", {{"saturation", 0.5}}}}, grey),
                 "color_jitter.saturation"));
  CHECK(augmenters({{"color_jitter", {{"brightness", 0.5}}}}, grey).size() == 1);
  CHECK(augmenters({{"rand_augment", nlohmann::json::object()}, {"trivial_augment", true}}, grey)
            .size() == 2);
  for (const char* key : {"color_jitter", "rand_augment"})
    CHECK(contains(refusal({{key, nlohmann::json::object()}}, two), key));
  CHECK(contains(refusal({{"trivial_augment", true}}, two), "trivial_augment"));
  CHECK(contains(refusal({{"color_jitter", {{"brightness", -1}}}}), "color_jitter.brightness"));
  CHECK(contains(refusal({{"color_jitter", {{"hue", 0.6}}}}), "color_jitter.hue"));
  CHECK(contains(refusal({{"color_jitter", {{"contrast", {1.5, 0.5}}}}}), "[least, most]"));
  CHECK(contains(refusal({{"color_jitter", {{"contrast", "much"}}}}), "color_jitter.contrast"));
  CHECK(contains(refusal({{"rand_augment", {{"magnitude", 31}}}}), "rand_augment.magnitude"));
  CHECK(contains(refusal({{"random_erasing", {{"scale", {0.5, 0.1}}}}}), "random_erasing.scale"));
  CHECK(contains(refusal({{"random_erasing", {{"scale", {0.5}}}}}), "has 1 number;"));
  CHECK(contains(refusal({{"random_resized_crop", {{"scale", {0.5, 0.1}}}}}),
                 "random_resized_crop.scale"));
  CHECK(contains(refusal({{"random_resized_crop", {{"ratio", {1.0}}}}}), "needed: [least, most]"));
  CHECK(contains(refusal({{"flip", 1}}), "flip"));
  CHECK(contains(refusal({{"mixup", -0.1}}), "mixup"));
  CHECK(contains(refusal({{"cutmix", true}}), "cutmix"));
  CHECK(contains(refusal({{"cutout", 4}}, Shape{}), "is for images"));
}

}  // namespace starling::augment_tests
