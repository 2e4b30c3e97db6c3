// What depends on a draw, against torchvision (golden/make_drawn_augmentations.py): what becomes of
// a given draw, and how draws are distributed.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/data/augment.h"
#include "apps/data/loader.h"
#include "apps/pictures/picture.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/apps/data_test_support.h"
#include "tests/support/base64.h"

namespace starling::drawn_augment_tests {

using test::Bytes;
using test::from_base64;

const nlohmann::json& golden() {
  static const nlohmann::json json = read_json_file("golden/drawn_augmentations.json");
  return json;
}
using Box = std::array<std::int32_t, 4>;  // top, left, bottom, right

constexpr std::int64_t kBatch = 4, kClasses = 10;
const Shape kImage{6, 5, 3};

/// What a config's key would have drawn.
class GivenMix final : public Augmenter {
 public:
  explicit GivenMix(BatchMix mix) : mix_(mix) {}
  AugmentStage stage() const override { return AugmentStage::kMix; }
  void apply(const SampleRandom&, AugmentedImage&) const override {}
  std::string mixes() const override { return "given"; }
  BatchMix mix(const SampleRandom&, const Shape&) const override { return mix_; }

 private:
  BatchMix mix_;
};
class GivenErasing final : public Augmenter {
 public:
  GivenErasing(ErasedBox box, double value) : box_(box), value_(value) {}
  AugmentStage stage() const override { return AugmentStage::kErase; }
  std::vector<double> erases() const override { return {value_}; }
  void apply(const SampleRandom&, AugmentedImage& image) const override { image.boxes[0] = box_; }

 private:
  ErasedBox box_;
  double value_;
};

/// The first batch of the numbered images.
Batch batch_of(const std::shared_ptr<const Augmenter>& augmenter, CpuBackend& backend) {
  const test::NumberedDataset dataset(kBatch, 1);
  LoaderSettings settings{.shuffle = false, .augment = {augmenter}, .batch_size = kBatch};
  if (!augmenter->mixes().empty()) settings.soft_target = {"label", kClasses};
  Loader loader(dataset, settings, backend, DType::kFloat32);
  return loader.next();
}
void check_numbers(std::span<const float> numbers, const nlohmann::json& expected) {
  REQUIRE(numbers.size() == expected.size());
  for (std::size_t i = 0; i < numbers.size(); ++i)
    REQUIRE(numbers[i] == doctest::Approx(expected[i].get<double>()).epsilon(2e-6));
}

TEST_CASE("apps/drawn: mixed images and targets are torchvision's of the same share or rectangle") {
  CpuBackend backend;
  std::set<std::string> keys;
  for (const nlohmann::json& one : golden()["mixtures"]) {
    const double share = one["share"];
    const Box box = one["box"];
    CAPTURE(one["key"].get<std::string>());
    CAPTURE(share);
    const BatchMix mix{static_cast<std::int32_t>(std::lround(share * math::kWholeShare)), box[0],
                       box[1], box[2], box[3]};
    const Batch batch = batch_of(std::make_shared<GivenMix>(mix), backend);
    check_numbers(batch["image"].span<float>(), one["numbers"]);
    check_numbers(batch["label"].span<float>(), one["labels"]);
    keys.insert(one["key"]);
  }
  CHECK(keys == std::set<std::string>{"cutmix", "mixup"});
}

TEST_CASE("apps/drawn: erased rectangles are torchvision's") {
  CpuBackend backend;
  CHECK(golden()["erasings"].size() == 3);
  for (const nlohmann::json& one : golden()["erasings"]) {
    const Box box = one["box"];
    CAPTURE(box);
    const Batch batch = batch_of(
        std::make_shared<GivenErasing>(ErasedBox{box[0], box[1], box[2], box[3]}, one["value"]),
        backend);
    check_numbers(batch["image"].span<float>(), one["numbers"]);
  }
}

TEST_CASE(
    "apps/drawn: resized crops are torchvision's within a grey level, cut before decoding or of an "
    "image's bytes") {
  const auto shape = golden()["picture"]["shape"].get<std::vector<std::int64_t>>(),
             size = golden()["size"].get<std::vector<std::int64_t>>();
  const Bytes picture = from_base64(golden()["picture"]["bytes"]);
  std::set<std::string> ways;
  for (const nlohmann::json& one : golden()["crops"]) {
    const std::string way = one["interpolation"];
    const Box box = one["box"];
    CAPTURE(way);
    CAPTURE(box);
    const Bytes expected = from_base64(one["bytes"]);
    Bytes made(expected.size());
    PictureDecoder({.interpolation = interpolation_of(way)})
        .cut(
            {picture.data(), shape[0], shape[1]}, "it",
            [&](const PictureSize&) { return PicturePart::window(box[0], box[1], box[2], box[3]); },
            size[0], size[1], made.data());
    CHECK(test::largest_gap(made, expected) <= (way == "nearest" ? 0 : 1));
    ways.insert(way);
  }
  CHECK(ways.size() == 3);

  // An image of one size is resized to its own size; the same function says what that is.
  Bytes changed = picture, cut(picture.size());
  const PicturePart part = PicturePart::window(5, 9, 24, 17);
  change_pixels(
      {changed.data(), shape[0], shape[1], 3},
      pixel_steps::resize(part.top, part.left, part.height, part.width, Interpolation::kBilinear));
  PictureDecoder().cut(
      {picture.data(), shape[0], shape[1]}, "it", [&](const PictureSize&) { return part; },
      shape[0], shape[1], cut.data());
  CHECK(changed == cut);
}

using Drawn = std::map<std::string, double>;

Drawn box_numbers(std::int64_t top, std::int64_t left, std::int64_t height, std::int64_t width,
                  const Shape& image, double ratio) {
  const auto place = [](std::int64_t at, std::int64_t side, std::int64_t size) {
    return (static_cast<double>(at) + 0.5) / static_cast<double>(size - side + 1);
  };
  return {{"area", static_cast<double>(height * width) / static_cast<double>(image[0] * image[1])},
          {"log_ratio", std::log(ratio)},
          {"height", static_cast<double>(height)},
          {"width", static_cast<double>(width)},
          {"top", place(top, height, image[0])},
          {"left", place(left, width, image[1])}};
}

/// What the key draws for a sample; empty: nothing.
Drawn draw(const std::string& key, const Augmenters& augmenters, std::int64_t sample,
           const Shape& image) {
  if (key == "random_resized_crop") {
    const PicturePart p = *augmenters[0]->part({11, 2, sample}, {image[0], image[1]});
    return box_numbers(p.top, p.left, p.height, p.width, image,
                       static_cast<double>(p.width) / static_cast<double>(p.height));
  }
  if (key == "random_erasing") {
    std::array<ErasedBox, 1> boxes;
    ImageChange(augmenters, 11, 2)(sample, {}, image, false, boxes);
    const ErasedBox& b = boxes[0];
    if (b.bottom == 0) return {};
    const std::int64_t height = b.bottom - b.top, width = b.right - b.left;
    return box_numbers(b.top, b.left, height, width, image,
                       static_cast<double>(height) / static_cast<double>(width));
  }
  const BatchMix mix = ImageChange(augmenters, 11, 2).mix(sample, image);
  Drawn drawn{{"share", static_cast<double>(mix.share(image))}};
  if (key == "cutmix") {
    for (const auto& [name, at] : {std::pair("top", mix.top),
                                   {"left", mix.left},
                                   {"bottom", mix.bottom},
                                   {"right", mix.right}})
      drawn[name] = at;
  }
  return drawn;
}

TEST_CASE(
    "apps/drawn: areas, shapes, places and shares are distributed as torchvision's, whatever "
    "fits") {
  constexpr int kDraws = 20000;
  // Five standard deviations of the difference between two shares, of 20,000 and 50,000 draws.
  const auto allowed = [](double share) {
    return 5 * std::sqrt(std::max(share * (1 - share), 1e-3) * (1.0 / kDraws + 1.0 / 50000));
  };
  std::map<std::string, int> seen;
  for (const nlohmann::json& one : golden()["distributions"]) {
    const std::string key = one["key"];
    const Shape image{one["image"][0], one["image"][1], 3};
    CAPTURE(key);
    CAPTURE(one["keys"].dump());
    CAPTURE(image.text());
    nlohmann::json keys{{key, one["keys"]}};
    if (key == "random_erasing") keys[key]["p"] = 1;
    const Augmenters augmenters = test::augmenters_from(keys, image);
    std::map<std::string, std::vector<double>> values;
    int drawn = 0;
    for (std::int64_t sample = 0; sample < kDraws; ++sample) {
      const Drawn numbers = draw(key, augmenters, sample, image);
      drawn += !numbers.empty();
      for (const auto& [name, value] : numbers) values[name].push_back(value);
    }
    const double share = one["share"];
    CHECK(std::abs(static_cast<double>(drawn) / kDraws - share) <=
          (share == 1.0 ? 0.0 : allowed(share)));
    CHECK(values.size() == one["below"].size());
    for (const auto& [name, points] : one["below"].items()) {
      CAPTURE(name);
      for (const auto& [point, expected] : points.get<std::vector<std::pair<double, double>>>()) {
        const auto below = std::count_if(values[name].begin(), values[name].end(),
                                         [&](double v) { return v <= point; });
        CAPTURE(point);
        CAPTURE(expected);
        // Of what is drawn less often, fewer draws speak.
        CHECK(std::abs(static_cast<double>(below) / drawn - expected) <=
              allowed(expected) / std::sqrt(share));
      }
    }
    ++seen[key];
  }
  CHECK(seen ==
        std::map<std::string, int>{
            {"cutmix", 2}, {"mixup", 3}, {"random_erasing", 3}, {"random_resized_crop", 5}});
}

}  // namespace starling::drawn_augment_tests
