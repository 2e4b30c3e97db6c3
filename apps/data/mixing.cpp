// Mixes the images of a batch, and their targets, with their neighbours (torchvision's MixUp and
// CutMix). The share is drawn once for a batch from Beta(alpha, alpha). An image's neighbour is the
// one before it; the first image's is the last.
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "apps/data/augment.h"
#include "apps/data/gamma_number.h"

namespace starling {
namespace {

class Mixing : public Augmenter {
 public:
  explicit Mixing(double alpha) : alpha_(alpha) {}
  AugmentStage stage() const override { return AugmentStage::kMix; }
  void apply(const SampleRandom&, AugmentedImage&) const override {}

 protected:
  double share(const SampleRandom& random) const {
    std::uint32_t count = 0;
    const auto next = [&] { return random.draw(kMixingDraw + 2 + count++); };
    const double own = log_gamma_number(alpha_, next), other = log_gamma_number(alpha_, next),
                 most = std::max(own, other);
    return std::exp(own - most) / (std::exp(own - most) + std::exp(other - most));
  }

 private:
  double alpha_;
};

/// A weighted mean of both images (Zhang et al., "mixup: Beyond Empirical Risk Minimization",
/// 2017).
class Mixup final : public Mixing {
 public:
  using Mixing::Mixing;
  std::string mixes() const override { return "mixup"; }
  BatchMix mix(const SampleRandom& random, const Shape&) const override {
    return {.own = static_cast<std::int32_t>(std::lround(share(random) * math::kWholeShare))};
  }
};

/// A rectangle is the neighbour's (Yun et al., "CutMix", 2019), clipped to the image; the target's
/// share is computed from the clipped area.
class CutMix final : public Mixing {
 public:
  using Mixing::Mixing;
  std::string mixes() const override { return "cutmix"; }
  BatchMix mix(const SampleRandom& random, const Shape& image) const override {
    const Philox4x32 bits = random.draw(kMixingDraw + 1);
    const double half = 0.5 * std::sqrt(1.0 - share(random));
    const auto span = [&](std::uint32_t word, std::int64_t size) {
      const std::int64_t centre = random_below(word, size),
                         reach = static_cast<std::int64_t>(half * static_cast<double>(size));
      return std::pair(static_cast<std::int32_t>(std::max<std::int64_t>(0, centre - reach)),
                       static_cast<std::int32_t>(std::min(size, centre + reach)));
    };
    const auto [top, bottom] = span(bits.v[0], image[0]);
    const auto [left, right] = span(bits.v[1], image[1]);
    return {math::kWholeShare, top, left, bottom, right};
  }
};

template <class Way>
std::unique_ptr<Augmenter> make_mixing(ConfigSection& section, const char* key, const char* doc) {
  const double alpha = section.number(key, 0.0, Range::closed(0.0, 1e6), doc);
  return alpha > 0.0 ? std::make_unique<Way>(alpha) : nullptr;
}

}  // namespace

void register_mixing(AugmenterRegistry& registry) {
  registry.add(
      "mixup",
      [](ConfigSection& section, const Shape&) {
        return make_mixing<Mixup>(section, "mixup",
                                  "alpha of Beta(alpha, alpha), from which each batch draws the "
                                  "weight of an image relative to its neighbour; 0: off");
      },
      "images of a batch and their targets mixed with their neighbours'");
  registry.add(
      "cutmix",
      [](ConfigSection& section, const Shape&) {
        return make_mixing<CutMix>(section, "cutmix",
                                   "alpha of Beta(alpha, alpha), from which each batch draws "
                                   "the area of the rectangle that an image gets from its "
                                   "neighbour; together with mixup, for half of the batches; 0: "
                                   "off");
      },
      "a rectangle of each image, and its share of the target, come from the neighbour");
}

}  // namespace starling
