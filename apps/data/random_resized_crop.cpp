// Crops a part of random area and aspect ratio and resizes it to the image (torchvision's
// RandomResizedCrop; Szegedy et al., "Going Deeper with Convolutions", 2015).
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/data/augment.h"

namespace starling {
namespace {

constexpr int kCropTries = 10;  // then the largest centred part is taken

class RandomResizedCrop final : public Augmenter {
 public:
  RandomResizedCrop(NumberRange area, NumberRange ratio, Interpolation interpolation)
      : area_(area), ratio_(ratio), interpolation_(interpolation) {}
  AugmentStage stage() const override { return AugmentStage::kCrop; }

  std::optional<PicturePart> part(const SampleRandom& random,
                                  const PictureSize& picture) const override {
    const auto tall = static_cast<double>(picture.height),
               wide = static_cast<double>(picture.width);
    for (std::uint32_t attempt = 0; attempt < kCropTries; ++attempt) {
      const Philox4x32 bits = random.draw(kResizedCropDraw + attempt);
      const double area = tall * wide * random_between(area_.least, area_.most, bits.v[0]);
      const double ratio =
          std::exp(random_between(std::log(ratio_.least), std::log(ratio_.most), bits.v[1]));
      const auto width = static_cast<std::int64_t>(std::nearbyint(std::sqrt(area * ratio)));
      const auto height = static_cast<std::int64_t>(std::nearbyint(std::sqrt(area / ratio)));
      if (width <= 0 || height <= 0 || width > picture.width || height > picture.height) continue;
      return PicturePart::window(random_below(bits.v[2], picture.height - height + 1),
                                 random_below(bits.v[3], picture.width - width + 1), height, width);
    }
    std::int64_t height = picture.height, width = picture.width;
    if (wide / tall < ratio_.least) {
      height = std::clamp<std::int64_t>(
          static_cast<std::int64_t>(std::nearbyint(wide / ratio_.least)), 1, picture.height);
    } else if (wide / tall > ratio_.most) {
      width = std::clamp<std::int64_t>(
          static_cast<std::int64_t>(std::nearbyint(tall * ratio_.most)), 1, picture.width);
    }
    return PicturePart::window((picture.height - height) / 2, (picture.width - width) / 2, height,
                               width);
  }

  /// If all images have the same size: crop and resize as steps on the bytes.
  std::int64_t steps(bool cut) const override { return cut ? 0 : 2; }
  void apply(const SampleRandom& random, AugmentedImage& image) const override {
    if (image.cut) return;
    image.settle();
    const PicturePart part = *this->part(random, {image.shape()[0], image.shape()[1]});
    image.change(pixel_steps::resize(part.top, part.left, part.height, part.width, interpolation_));
  }

 private:
  NumberRange area_, ratio_;
  Interpolation interpolation_;
};

std::unique_ptr<Augmenter> make_random_resized_crop(ConfigSection& section, const Shape&) {
  const char* doc = "a part of random area and shape becomes the image";
  std::optional<ConfigSection> crop = section.optional_section("random_resized_crop", doc);
  if (!crop) return nullptr;
  const NumberRange area = read_range(*crop, "scale", {0.08, 1.0}, Range{1e-4, 1.0},
                                      "least and most of its area, as a share of the picture's");
  const NumberRange ratio = read_range(*crop, "ratio", {3.0 / 4.0, 4.0 / 3.0}, Range{1e-4, 1e4},
                                       "least and most of width / height");
  crop->finish();
  return std::make_unique<RandomResizedCrop>(
      area, ratio, interpolation_of(section.resolved().value("interpolation", "bilinear")));
}

}  // namespace

void register_random_resized_crop(AugmenterRegistry& registry) {
  registry.add("random_resized_crop", make_random_resized_crop,
               "a part of random area and shape, resized");
}

}  // namespace starling
