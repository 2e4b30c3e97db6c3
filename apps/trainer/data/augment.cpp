#include "apps/trainer/data/augment.h"

#include <fmt/format.h>

#include <algorithm>

namespace starling {
namespace {

/// floor(word · bound / 2^32)
std::int32_t below(std::uint32_t word, std::int64_t bound) {
  return static_cast<std::int32_t>((std::uint64_t{word} * static_cast<std::uint64_t>(bound)) >> 32);
}

class Crop final : public Augmenter {
 public:
  explicit Crop(std::int64_t padding) : padding_(padding) {}
  void apply(const SampleRandom& random, AugmentedImage& image) const override {
    const Philox4x32 bits = random.draw();
    image.window.offset_y = below(bits.v[0], 2 * padding_ + 1);
    image.window.offset_x = below(bits.v[1], 2 * padding_ + 1);
  }
  std::int64_t padding() const override { return padding_; }

 private:
  std::int64_t padding_;
};

class Flip final : public Augmenter {
 public:
  void apply(const SampleRandom& random, AugmentedImage& image) const override { image.window.flip = below(random.draw().v[2], 2); }
};

std::unique_ptr<Augmenter> make_crop(ConfigSection& section, const Shape& image) {
  const std::int64_t padding = section.integer("crop_padding", 0, Range::closed(0, 64), "pad by so many zero pixels and crop at random");
  for (int axis = 0; axis < std::min(2, image.rank()); ++axis) {
    if (padding >= image[axis]) section.error("crop_padding", "is {}, allowed: less than the image's size {}", padding, image.text());
  }
  return padding > 0 ? std::make_unique<Crop>(padding) : nullptr;
}

std::unique_ptr<Augmenter> make_flip(ConfigSection& section, const Shape&) {
  return section.boolean("flip", false, "mirror at random") ? std::make_unique<Flip>() : nullptr;
}

}  // namespace

AugmenterRegistry& augmentations() {
  static AugmenterRegistry registry("augmentation");
  return registry;
}

void register_builtin_augmentations() {
  static const bool once = [] {
    augmentations().add("crop_padding", make_crop, "a window at random of the image with zeros around it");
    register_random_resized_crop(augmentations());
    augmentations().add("flip", make_flip, "every second image mirrored");
    return true;
  }();
  static_cast<void>(once);
}

Augmenters read_augmenters(ConfigSection& section, const Shape& image) {
  Augmenters augmenters;
  for (const std::string& name : augmentations().names()) {
    if (image.rank() == 0 && !section.describing()) {
      if (section.has(name)) section.error(name, "is for images, which this data set has none of");
      continue;
    }
    if (auto augmenter = augmentations().make(name, section.path(name), section, image)) augmenters.push_back(std::move(augmenter));
  }
  section.finish();
  return augmenters;
}

std::int64_t padding_of(const Augmenters& augmenters) {
  std::int64_t padding = 0;
  for (const auto& augmenter : augmenters) padding = std::max(padding, augmenter->padding());
  return padding;
}

ImageChange::ImageChange(const Augmenters& augmenters, std::uint64_t seed, std::int64_t epoch)
    : augmenters_(augmenters.empty() ? nullptr : &augmenters),
      seed_(seed),
      epoch_(epoch),
      centre_(static_cast<std::int32_t>(padding_of(augmenters))) {}

Augmentation ImageChange::operator()(std::int64_t sample, std::span<std::uint8_t> bytes, const Shape& shape, bool cut) const {
  AugmentedImage image{bytes, shape, {centre_, centre_, 0}, cut};
  for (const auto& augmenter : *augmenters_) augmenter->apply({seed_, epoch_, sample}, image);
  return image.window;
}

std::optional<PicturePart> ImageChange::part(std::int64_t sample, const PictureSize& picture) const {
  if (!augmenters_) return std::nullopt;
  for (const auto& augmenter : *augmenters_) {
    if (auto part = augmenter->part({seed_, epoch_, sample}, picture)) return part;
  }
  return std::nullopt;
}

}  // namespace starling
