// Random brightness, contrast, saturation and hue in a random order (torchvision's ColorJitter).
#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "apps/data/augment.h"

namespace starling {
namespace {

constexpr std::array kSteps{pixel_steps::brightness, pixel_steps::contrast, pixel_steps::saturation,
                            pixel_steps::hue};

class ColorJitter final : public Augmenter {
 public:
  explicit ColorJitter(const std::array<NumberRange, 4>& ranges) : ranges_(ranges) {}

  std::int64_t steps(bool) const override { return 1 + std::ssize(ranges_); }
  void apply(const SampleRandom& random, AugmentedImage& image) const override {
    image.settle();
    const Philox4x32 numbers = random.draw(kColorJitterDraw),
                     order = random.draw(kColorJitterDraw + 1);
    std::array<std::size_t, 4> which{0, 1, 2, 3};
    for (std::size_t i = 3; i > 0; --i) {
      std::swap(which[i], which[static_cast<std::size_t>(
                              random_below(order.v[i], static_cast<std::int64_t>(i) + 1))]);
    }
    for (const std::size_t i : which) {
      const double neutral = i == 3 ? 0.0 : 1.0;
      if (ranges_[i].least == neutral && ranges_[i].most == neutral) continue;
      const double value = random_between(ranges_[i].least, ranges_[i].most, numbers.v[i]);
      image.change(kSteps[i](value));
    }
  }

 private:
  std::array<NumberRange, 4> ranges_;  ///< of the numbers that kSteps take
};

/// A number x means the range [max(0, 1 - x), 1 + x], or [-x, x] if `neutral` is 0; a list is the
/// range itself.
NumberRange read_jitter(ConfigSection& section, const char* key, double neutral, Range allowed,
                        const char* doc) {
  const nlohmann::json value = section.raw(key, "number or list of numbers", doc);
  if (value.is_null()) {
    section.resolve(key, 0.0);
    return {neutral, neutral};
  }
  const auto number = [&](const nlohmann::json& item) {
    if (!item.is_number() || !allowed.contains(item.get<double>())) {
      section.error(key, "is {}; needed: a number, or [least, most], {}", shown(value.dump(), 60),
                    allowed.text());
    }
    return item.get<double>();
  };
  if (value.is_array()) {
    if (value.size() != 2 || number(value[0]) > number(value[1]))
      section.error(key, "is {}; needed: [least, most]", shown(value.dump(), 60));
    return {number(value[0]), number(value[1])};
  }
  const double size = number(value);
  if (size < 0.0)
    section.error(key, "is {}; needed: a number >= 0, or [least, most]", shown(value.dump(), 60));
  return {neutral == 0.0 ? -size : std::max(0.0, neutral - size), neutral + size};
}

std::unique_ptr<Augmenter> make_color_jitter(ConfigSection& section, const Shape& image) {
  const char* doc =
      "random changes of colours, in a random order; x stands for factors from 1 - x to 1 + x";
  std::optional<ConfigSection> jitter = section.optional_section("color_jitter", doc);
  if (!jitter) return nullptr;
  check_color_channels(section, "color_jitter", image);
  const Range factor = Range::closed(0.0, 100.0);
  // Braces, so that keys are read, and documented, in this order
  const std::array<NumberRange, 4> ranges{
      read_jitter(*jitter, "brightness", 1.0, factor,
                  "range of the factor on all values; default 0: none"),
      read_jitter(*jitter, "contrast", 1.0, factor,
                  "range of the factor on differences from the mean grey; default 0: none"),
      read_jitter(*jitter, "saturation", 1.0, factor,
                  "range of the factor on differences from the pixel's grey; default 0: none"),
      read_jitter(*jitter, "hue", 0.0, Range::closed(-0.5, 0.5),
                  "range of the hue's rotation in parts of a circle, x means -x to x; default 0: "
                  "none")};
  jitter->finish();
  for (const char* key : {"saturation", "hue"}) {
    if (image[2] == 1 && jitter->has(key))
      jitter->error(key, "is for colours, the images are grey ({}); leave it out", image.text());
  }
  return std::make_unique<ColorJitter>(ranges);
}

}  // namespace

void register_color_jitter(AugmenterRegistry& registry) {
  registry.add("color_jitter", make_color_jitter,
               "random brightness, contrast, saturation and hue");
}

}  // namespace starling
