// A part of random area and shape, resized to the image (torchvision's RandomResizedCrop; Szegedy et al., "Going Deeper with Convolutions",
// 2015).
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/pictures/resize.h"
#include "apps/trainer/data/augment.h"

namespace starling {
namespace {

constexpr int kCropTries = 10;  // after which the largest part in the middle is taken

class RandomResizedCrop final : public Augmenter {
 public:
  RandomResizedCrop(NumberRange area, NumberRange ratio, Interpolation interpolation)
      : area_(area), ratio_(ratio), interpolation_(interpolation) {}
  AugmentStage stage() const override { return AugmentStage::kCrop; }

  std::optional<PicturePart> part(const SampleRandom& random, const PictureSize& picture) const override {
    const auto tall = static_cast<double>(picture.height), wide = static_cast<double>(picture.width);
    for (std::uint32_t attempt = 0; attempt < kCropTries; ++attempt) {
      const Philox4x32 bits = random.draw(kResizedCropDraw + attempt);
      const double area = tall * wide * random_between(area_.least, area_.most, bits.v[0]);
      const double ratio = std::exp(random_between(std::log(ratio_.least), std::log(ratio_.most), bits.v[1]));
      const auto width = static_cast<std::int64_t>(std::nearbyint(std::sqrt(area * ratio)));
      const auto height = static_cast<std::int64_t>(std::nearbyint(std::sqrt(area / ratio)));
      if (width <= 0 || height <= 0 || width > picture.width || height > picture.height) continue;
      return PicturePart::window(random_below(bits.v[2], picture.height - height + 1), random_below(bits.v[3], picture.width - width + 1),
                                 height, width);
    }
    std::int64_t height = picture.height, width = picture.width;
    if (wide / tall < ratio_.least) {
      height = std::clamp<std::int64_t>(static_cast<std::int64_t>(std::nearbyint(wide / ratio_.least)), 1, picture.height);
    } else if (wide / tall > ratio_.most) {
      width = std::clamp<std::int64_t>(static_cast<std::int64_t>(std::nearbyint(tall * ratio_.most)), 1, picture.width);
    }
    return PicturePart::window((picture.height - height) / 2, (picture.width - width) / 2, height, width);
  }

  /// Of a data set whose images have one size: cuts and resizes the bytes.
  void apply(const SampleRandom& random, AugmentedImage& image) const override {
    if (image.cut) return;
    const std::int64_t height = image.shape[0], width = image.shape[1], channels = image.shape[2];
    const PicturePart part = *this->part(random, {height, width});
    thread_local std::vector<std::uint8_t> pixels, resized;
    thread_local Resizer resizer;
    const auto count = static_cast<std::size_t>(height * width), depth = static_cast<std::size_t>(channels);
    pixels.resize(4 * count);
    resized.resize(4 * count);
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t c = 0; c < depth; ++c) pixels[4 * i + c] = image.bytes[depth * i + c];
    }
    const PixelWindow window{pixels.data() + 4 * (part.top * width + part.left), 4 * width, part.height, part.width};
    resizer.resize(window, {0, 0, part.box_height, part.box_width}, interpolation_, height, width, resized.data());
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t c = 0; c < depth; ++c) image.bytes[depth * i + c] = resized[4 * i + c];
    }
  }

 private:
  NumberRange area_, ratio_;
  Interpolation interpolation_;
};

std::unique_ptr<Augmenter> make_random_resized_crop(ConfigSection& section, const Shape&) {
  const char* doc = "a part of random area and shape becomes the image";
  if (!section.has("random_resized_crop") && !section.describing()) {
    section.raw("random_resized_crop", "object", doc);
    return nullptr;
  }
  ConfigSection crop = section.section("random_resized_crop", doc);
  const NumberRange area =
      read_range(crop, "scale", {0.08, 1.0}, Range{1e-4, 1.0}, "least and most of its area, as a share of the picture's");
  const NumberRange ratio = read_range(crop, "ratio", {3.0 / 4.0, 4.0 / 3.0}, Range{1e-4, 1e4}, "least and most of width / height");
  if (section.describing()) return nullptr;
  crop.finish();
  return std::make_unique<RandomResizedCrop>(area, ratio, interpolation_of(section.resolved().value("interpolation", "bilinear")));
}

}  // namespace

void register_random_resized_crop(AugmenterRegistry& registry) {
  registry.add("random_resized_crop", make_random_resized_crop, "a part of random area and shape, resized");
}

}  // namespace starling
