// RandAugment (Cubuk et al. 2019) and TrivialAugmentWide (Müller and Hutter 2021): operations drawn
// at random from a list of 14. The list, ranges, 31 magnitudes, nearest-pixel sampling and zero
// fill are torchvision's.
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/data/augment.h"

namespace starling {
namespace {

constexpr std::int64_t kMagnitudes = 31;

/// The parameter of each operation at the largest magnitude.
struct AugmentSpace {
  /// Tangent, degrees, change of brightness, colour, contrast and sharpness
  double shear, rotate, factor;
  int posterize;           ///< bits that are lost
  double translate;        ///< pixels, or
  double translate_share;  ///< a share of the image's size
};
constexpr AugmentSpace kRandSpace{0.3, 30.0, 0.9, 4, 0.0, 150.0 / 331.0},
    kTrivialSpace{0.99, 135.0, 0.99, 6, 32.0, 0.0};

enum class AugmentOperation : std::uint8_t {
  kIdentity,
  kShearX,
  kShearY,
  kTranslateX,
  kTranslateY,
  kRotate,
  kBrightness,
  kColor,
  kContrast,
  kSharpness,
  kPosterize,
  kSolarize,
  kAutoContrast,
  kEqualize,
  kCount,
};

/// The operation at `part` (0 to 1) of its largest magnitude, with `sign` if it has one.
PixelStep step_of(AugmentOperation operation, double part, double sign, const AugmentSpace& space,
                  const Shape& image) {
  const auto pixels_of = [&](std::int64_t size) {
    return std::trunc(sign * part *
                      (space.translate + space.translate_share * static_cast<double>(size)));
  };
  const double factor = 1.0 + sign * part * space.factor;
  switch (operation) {
    case AugmentOperation::kShearX:
      return pixel_steps::transform(PixelMap::shear_x(sign * part * space.shear));
    case AugmentOperation::kShearY:
      return pixel_steps::transform(PixelMap::shear_y(sign * part * space.shear));
    case AugmentOperation::kTranslateX:
      return pixel_steps::transform(PixelMap::translate(pixels_of(image[1]), 0.0));
    case AugmentOperation::kTranslateY:
      return pixel_steps::transform(PixelMap::translate(0.0, pixels_of(image[0])));
    case AugmentOperation::kRotate:
      return pixel_steps::transform(
          PixelMap::rotate(sign * part * space.rotate, image[0], image[1]));
    case AugmentOperation::kBrightness: return pixel_steps::brightness(factor);
    case AugmentOperation::kColor: return pixel_steps::saturation(factor);
    case AugmentOperation::kContrast: return pixel_steps::contrast(factor);
    case AugmentOperation::kSharpness: return pixel_steps::sharpness(factor);
    case AugmentOperation::kPosterize:
      return pixel_steps::posterize(8 - static_cast<int>(std::nearbyint(part * space.posterize)));
    case AugmentOperation::kSolarize: return pixel_steps::solarize(255.0 * (1.0 - part));
    case AugmentOperation::kAutoContrast: return pixel_steps::autocontrast();
    case AugmentOperation::kEqualize: return pixel_steps::equalize();
    default: return {};
  }
}

/// The words of a draw choose the operation, the sign, and for TrivialAugmentWide the magnitude.
void change_as_drawn(const Philox4x32& bits, std::int64_t magnitude, const AugmentSpace& space,
                     AugmentedImage& image) {
  const auto operation = static_cast<AugmentOperation>(
      random_below(bits.v[0], static_cast<std::int64_t>(AugmentOperation::kCount)));
  const double sign = random_below(bits.v[1], 2) == 0 ? 1.0 : -1.0;
  image.change(step_of(operation,
                       static_cast<double>(magnitude) / static_cast<double>(kMagnitudes - 1), sign,
                       space, image.shape()));
}

class RandAugment final : public Augmenter {
 public:
  RandAugment(std::int64_t count, std::int64_t magnitude)
      : count_(static_cast<std::uint32_t>(count)), magnitude_(magnitude) {}
  std::int64_t steps(bool) const override { return 1 + std::int64_t{count_}; }
  void apply(const SampleRandom& random, AugmentedImage& image) const override {
    image.settle();
    for (std::uint32_t i = 0; i < count_; ++i)
      change_as_drawn(random.draw(kAutoAugmentDraw + i), magnitude_, kRandSpace, image);
  }

 private:
  std::uint32_t count_;
  std::int64_t magnitude_;
};

class TrivialAugment final : public Augmenter {
 public:
  std::int64_t steps(bool) const override { return 2; }
  void apply(const SampleRandom& random, AugmentedImage& image) const override {
    image.settle();
    const Philox4x32 bits = random.draw(kAutoAugmentDraw + kTrivialDraw);
    change_as_drawn(bits, random_below(bits.v[2], kMagnitudes), kTrivialSpace, image);
  }

 private:
  static constexpr std::uint32_t kTrivialDraw = 48;  // after the draws of RandAugment
};

std::unique_ptr<Augmenter> make_rand_augment(ConfigSection& section, const Shape& image) {
  const char* doc = "operations drawn from torchvision's list of 14, all of one magnitude";
  std::optional<ConfigSection> keys = section.optional_section("rand_augment", doc);
  if (!keys) return nullptr;
  check_color_channels(section, "rand_augment", image);
  const std::int64_t count =
      keys->integer("n", 2, Range::closed(1, 16), "operations per image, in sequence");
  const std::int64_t magnitude = keys->integer("magnitude", 9, Range::closed(0, kMagnitudes - 1),
                                               "their magnitude, of 31 steps");
  keys->finish();
  return std::make_unique<RandAugment>(count, magnitude);
}

std::unique_ptr<Augmenter> make_trivial_augment(ConfigSection& section, const Shape& image) {
  if (!section.boolean(
          "trivial_augment", false,
          "one operation of that list per image, of random magnitude up to a larger maximum"))
    return nullptr;
  check_color_channels(section, "trivial_augment", image);
  return std::make_unique<TrivialAugment>();
}

}  // namespace

void register_auto_augment(AugmenterRegistry& registry) {
  registry.add("rand_augment", make_rand_augment,
               "some operations of 14, all of one magnitude (RandAugment)");
  registry.add("trivial_augment", make_trivial_augment,
               "one operation of 14, of random magnitude (TrivialAugmentWide)");
}

}  // namespace starling
