// Erases rectangles of normalised images, so that the fill value 0 is the data's mean colour.
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/data/augment.h"

namespace starling {
namespace {

constexpr std::uint32_t kEraseTries = 10;  // after which the image is left unchanged

ErasedBox box_of(std::int64_t top, std::int64_t left, std::int64_t bottom, std::int64_t right) {
  return {static_cast<std::int32_t>(top), static_cast<std::int32_t>(left),
          static_cast<std::int32_t>(bottom), static_cast<std::int32_t>(right)};
}

/// Erases boxes of random area and shape (Zhong et al., "Random Erasing Data Augmentation", 2017;
/// torchvision's RandomErasing).
class RandomErasing final : public Augmenter {
 public:
  RandomErasing(double p, NumberRange area, NumberRange ratio, double value)
      : p_(p), area_(area), ratio_(ratio), value_(value) {}
  AugmentStage stage() const override { return AugmentStage::kErase; }
  std::vector<double> erases() const override { return {value_}; }
  void apply(const SampleRandom& random, AugmentedImage& image) const override {
    if (random_between(0.0, 1.0, random.draw(kErasingDraw).v[0]) >= p_) return;
    const std::int64_t height = image.shape()[0], width = image.shape()[1];
    for (std::uint32_t attempt = 1; attempt <= kEraseTries; ++attempt) {
      const Philox4x32 bits = random.draw(kErasingDraw + attempt);
      const double area =
          static_cast<double>(height * width) * random_between(area_.least, area_.most, bits.v[0]);
      const double ratio =
          std::exp(random_between(std::log(ratio_.least), std::log(ratio_.most), bits.v[1]));
      const auto tall = static_cast<std::int64_t>(std::nearbyint(std::sqrt(area * ratio)));
      const auto wide = static_cast<std::int64_t>(std::nearbyint(std::sqrt(area / ratio)));
      if (tall >= height || wide >= width) continue;
      const std::int64_t top = random_below(bits.v[2], height - tall + 1),
                         left = random_below(bits.v[3], width - wide + 1);
      image.boxes[0] = box_of(top, left, top + tall, left + wide);
      return;
    }
  }

 private:
  double p_;
  NumberRange area_, ratio_;
  double value_;
};

/// Erases a square centred on any pixel, clipped to the image (DeVries and Taylor, "Improved
/// Regularization of Convolutional Neural Networks with Cutout", 2017).
class Cutout final : public Augmenter {
 public:
  explicit Cutout(std::int64_t side) : side_(side) {}
  AugmentStage stage() const override { return AugmentStage::kErase; }
  std::vector<double> erases() const override { return {0.0}; }
  void apply(const SampleRandom& random, AugmentedImage& image) const override {
    const Philox4x32 bits = random.draw(kCutoutDraw);
    const std::int64_t top = random_below(bits.v[0], image.shape()[0]) - side_ / 2,
                       left = random_below(bits.v[1], image.shape()[1]) - side_ / 2;
    image.boxes[0] =
        box_of(std::max<std::int64_t>(0, top), std::max<std::int64_t>(0, left),
               std::min(image.shape()[0], top + side_), std::min(image.shape()[1], left + side_));
  }

 private:
  std::int64_t side_;
};

std::unique_ptr<Augmenter> make_random_erasing(ConfigSection& section, const Shape&) {
  const char* doc = "erases a rectangle of random area and shape, after normalisation";
  std::optional<ConfigSection> erasing = section.optional_section("random_erasing", doc);
  if (!erasing) return nullptr;
  const double p =
      erasing->number("p", 0.5, Range::closed(0.0, 1.0), "share of images that lose a rectangle");
  const NumberRange area = read_range(*erasing, "scale", {0.02, 0.33}, Range{1e-4, 1.0},
                                      "least and most of its area, as a share of the image's");
  const NumberRange ratio = read_range(*erasing, "ratio", {0.3, 3.3}, Range{1e-4, 1e4},
                                       "least and most of height / width");
  const double value = erasing->number("value", 0.0, Range::closed(-1e4, 1e4),
                                       "normalised value that fills it; 0: the mean colour");
  erasing->finish();
  return std::make_unique<RandomErasing>(p, area, ratio, value);
}

std::unique_ptr<Augmenter> make_cutout(ConfigSection& section, const Shape&) {
  const std::int64_t side = section.integer(
      "cutout", 0, Range::closed(0, 4096),
      "side of a square anywhere, even partly outside, that becomes the mean colour; 0: none");
  return side > 0 ? std::make_unique<Cutout>(side) : nullptr;
}

}  // namespace

void register_erasing(AugmenterRegistry& registry) {
  registry.add("random_erasing", make_random_erasing,
               "a rectangle of random area and shape becomes the mean colour");
  registry.add("cutout", make_cutout, "a square anywhere becomes the mean colour");
}

}  // namespace starling
