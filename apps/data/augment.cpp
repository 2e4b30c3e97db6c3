#include "apps/data/augment.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace starling {
namespace {

class Crop final : public Augmenter {
 public:
  Crop(std::int64_t padding, bool reflect) : padding_(padding), reflect_(reflect) {}
  AugmentStage stage() const override { return AugmentStage::kCrop; }
  void apply(const SampleRandom& random, AugmentedImage& image) const override {
    const Philox4x32 bits = random.draw(kWindowDraw);
    const auto offset_y = static_cast<std::int32_t>(random_below(bits.v[0], 2 * padding_ + 1));
    const auto offset_x = static_cast<std::int32_t>(random_below(bits.v[1], 2 * padding_ + 1));
    if (reflect_) {
      image.change(pixel_steps::window(offset_y - padding_, offset_x - padding_, false, true));
    } else {
      image.window.offset_y = offset_y;
      image.window.offset_x = offset_x;
    }
  }
  std::int64_t padding() const override { return reflect_ ? 0 : padding_; }
  std::int64_t steps(bool) const override { return reflect_ ? 1 : 0; }

 private:
  std::int64_t padding_;
  bool reflect_;
};

/// Mirrors images at random, or in alternate epochs. In the latter case it is random per image
/// whether the first or the second epoch is mirrored (Jordan, "94% on CIFAR-10 in 3.29 Seconds on a
/// Single GPU", 2024, section 3.6).
class Flip final : public Augmenter {
 public:
  explicit Flip(bool alternating) : alternating_(alternating) {}
  AugmentStage stage() const override { return AugmentStage::kFlip; }
  void apply(const SampleRandom& random, AugmentedImage& image) const override {
    SampleRandom parity = random;
    if (alternating_) parity.epoch = 0;
    const std::int64_t first = random_below(parity.draw(kWindowDraw).v[2], 2);
    image.window.flip = static_cast<std::int32_t>((first + (alternating_ ? random.epoch : 0)) & 1);
  }

 private:
  bool alternating_;
};

std::unique_ptr<Augmenter> make_crop(ConfigSection& section, const Shape& image) {
  const std::int64_t padding =
      section.integer("crop_padding", 0, Range::closed(0, 64),
                      "pad by so many pixels on every side and crop at random");
  const bool reflect =
      section.choice(
          "padding_mode", "zero", {"zero", "reflect"},
          "values of the padding: zeros, or the image mirrored at its outermost pixels") ==
      "reflect";
  for (int axis = 0; axis < std::min(2, image.rank()); ++axis) {
    if (padding >= image[axis])
      section.error("crop_padding", "is {}, allowed: less than the image's size {}", padding,
                    image.text());
  }
  return padding > 0 ? std::make_unique<Crop>(padding, reflect) : nullptr;
}

std::unique_ptr<Augmenter> make_flip(ConfigSection& section, const Shape&) {
  const nlohmann::json value = section.raw(
      "flip", "boolean or text",
      "true: mirror at random; \"alternating\": in every second epoch, a random half in even ones");
  const bool alternating = value.is_string() && value.get<std::string>() == "alternating";
  if (!value.is_null() && !value.is_boolean() && !alternating) {
    section.error("flip", "is {}; allowed: true, false, \"alternating\"", shown(value.dump(), 60));
  }
  if (value.is_null()) section.resolve("flip", false);
  return alternating || (value.is_boolean() && value.get<bool>())
             ? std::make_unique<Flip>(alternating)
             : nullptr;
}

}  // namespace

AugmenterRegistry& augmentations() {
  static AugmenterRegistry registry("augmentation", true);
  return registry;
}

void register_builtin_augmentations() {
  static const bool once = [] {
    augmentations().add("crop_padding", make_crop, "a random window of the padded image");
    register_random_resized_crop(augmentations());
    augmentations().add("flip", make_flip,
                        "every second image mirrored, or every image in every second epoch");
    register_color_jitter(augmentations());
    register_auto_augment(augmentations());
    register_erasing(augmentations());
    register_mixing(augmentations());
    return true;
  }();
  static_cast<void>(once);
}

void check_color_channels(ConfigSection& section, const char* key, const Shape& image) {
  if (image.rank() == 3 && image[2] != 1 && image[2] != 3) {
    section.error(key, "is for grey or RGB images, these are {}; leave it out", image.text());
  }
}

NumberRange read_range(ConfigSection& section, const char* key, NumberRange usual, Range allowed,
                       const char* doc) {
  const std::vector<double> range = section.numbers(key, {usual.least, usual.most}, allowed, doc);
  if (range.size() != 2)
    section.error(key, "has {} number{}; needed: [least, most]", range.size(),
                  range.size() == 1 ? "" : "s");
  if (range[0] > range[1])
    section.error(key, "is [{}, {}]; needed: [least, most]", range[0], range[1]);
  return {range[0], range[1]};
}

Augmenters read_augmenters(ConfigSection& section, const Shape& image) {
  Augmenters augmenters;
  for (const std::string& name : augmentations().names()) {
    if (image.rank() == 0) {
      if (section.has(name)) section.error(name, "is for images, which this data set has none of");
      continue;
    }
    if (auto augmenter = augmentations().make(name, section.path(name), section, image))
      augmenters.push_back(std::move(augmenter));
  }
  section.finish();
  std::stable_sort(augmenters.begin(), augmenters.end(),
                   [](const auto& a, const auto& b) { return a->stage() < b->stage(); });
  return augmenters;
}

std::int64_t padding_of(const Augmenters& augmenters) {
  std::int64_t padding = 0;
  for (const auto& augmenter : augmenters) padding = std::max(padding, augmenter->padding());
  return padding;
}

std::int64_t steps_of(const Augmenters& augmenters, bool cut) {
  std::int64_t steps = 0;
  for (const auto& augmenter : augmenters) steps += augmenter->steps(cut);
  return steps;
}

std::vector<double> erased_values(const Augmenters& augmenters) {
  std::vector<double> values;
  for (const auto& augmenter : augmenters) {
    for (const double value : augmenter->erases()) values.push_back(value);
  }
  return values;
}

std::string mixing_key(const Augmenters& augmenters) {
  for (const auto& augmenter : augmenters) {
    if (const std::string key = augmenter->mixes(); !key.empty()) return key;
  }
  return {};
}

void AugmentedImage::change(const PixelStep& step) {
  if (step.change == PixelChange::kNone) return;
  if (waiting_ < later_.size()) {
    check_step(shape_[2], shape_[0], shape_[1], step);  // the device looks at nothing
    later_[waiting_++] = step;
  } else {
    change_pixels(pixels(), step);
  }
}

void AugmentedImage::settle() {
  if (window == whole_) return;
  change(pixel_steps::window(window.offset_y - whole_.offset_y, window.offset_x - whole_.offset_x,
                             window.flip != 0));
  window = whole_;
}

std::span<std::uint8_t> AugmentedImage::bytes() {
  if (resize_) std::exchange(resize_, {})();
  const ImageBytes image{bytes_.data(), shape_[0], shape_[1], shape_[2]};
  for (PixelStep& step : later_.first(std::exchange(waiting_, 0)))
    change_pixels(image, std::exchange(step, PixelStep{}));
  return bytes_;
}

ImageChange::ImageChange(const Augmenters& augmenters, std::uint64_t seed, std::int64_t epoch)
    : augmenters_(augmenters.empty() ? nullptr : &augmenters),
      seed_(seed),
      epoch_(epoch),
      centre_(static_cast<std::int32_t>(padding_of(augmenters))) {}

Augmentation ImageChange::operator()(std::int64_t sample, std::span<std::uint8_t> bytes,
                                     const Shape& shape, bool cut, std::span<ErasedBox> boxes,
                                     std::span<PixelStep> later,
                                     std::function<void()> resize) const {
  std::fill(boxes.begin(), boxes.end(), ErasedBox{});
  std::fill(later.begin(), later.end(), PixelStep{});
  AugmentedImage image(bytes, shape, {centre_, centre_, 0}, later, std::move(resize));
  image.cut = cut;
  std::size_t first = 0;
  for (const auto& augmenter : *augmenters_) {
    const std::size_t own = augmenter->erases().size();
    if (own > 0 && boxes.empty()) continue;  // the caller asks for the window alone
    image.boxes = boxes.subspan(first, own);
    first += own;
    augmenter->apply({seed_, epoch_, sample}, image);
  }
  return image.window;
}

std::optional<PicturePart> ImageChange::part(std::int64_t sample,
                                             const PictureSize& picture) const {
  if (!augmenters_) return std::nullopt;
  for (const auto& augmenter : *augmenters_) {
    if (auto part = augmenter->part({seed_, epoch_, sample}, picture)) return part;
  }
  return std::nullopt;
}

BatchMix ImageChange::mix(std::int64_t first_sample, const Shape& image) const {
  if (!augmenters_) return {};
  const auto ways = std::count_if(augmenters_->begin(), augmenters_->end(),
                                  [](const auto& a) { return !a->mixes().empty(); });
  if (ways == 0) return {};
  const SampleRandom random{seed_, epoch_, first_sample};
  std::int64_t chosen = random_below(random.draw(kMixingDraw).v[0], ways);
  for (const auto& augmenter : *augmenters_) {
    if (!augmenter->mixes().empty() && chosen-- == 0) return augmenter->mix(random, image);
  }
  return {};
}

}  // namespace starling
