#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/random.h"
#include "core/registry.h"
#include "core/shape.h"

namespace starling {

/// The window that a batch takes of a padded image, and whether it is mirrored. Costs nothing: it is taken where bytes become numbers.
struct Augmentation {
  std::int32_t offset_y = 0, offset_x = 0, flip = 0;
};

/// The random numbers of one image in one epoch; they depend on (seed, epoch, sample) alone, so an image looks the same on any rank.
struct SampleRandom {
  std::uint64_t seed = 1;
  std::int64_t epoch = 0, sample = 0;
  /// Words 0 and 1 of draw 0 are the crop's, word 2 is the flip's; others take a draw of their own.
  Philox4x32 draw(std::uint32_t number = 0) const {
    return random_bits(seed, RandomStream::kAugment, static_cast<std::uint32_t>(epoch),
                       (std::uint64_t{number} << 40) | static_cast<std::uint64_t>(sample));
  }
};

/// A training image that is being changed: first its bytes, then the window on them.
struct AugmentedImage {
  std::span<std::uint8_t> bytes;  ///< H×W×C
  Shape shape;
  Augmentation window;
};

/// One random change of training images: a key of `data.augment`.
class Augmenter {
 public:
  virtual ~Augmenter() = default;
  virtual void apply(const SampleRandom& random, AugmentedImage& image) const = 0;
  /// Zero pixels that the window's offsets count from, on every side.
  virtual std::int64_t padding() const { return 0; }
};
using Augmenters = std::vector<std::shared_ptr<const Augmenter>>;  ///< applied in this order

/// By their key: a maker reads the key of its name from `data.augment` and returns null where nothing is asked for. It gets the images'
/// shape, of rank 0 while keys are only described.
using AugmenterRegistry = Registry<std::unique_ptr<Augmenter>, ConfigSection&, const Shape&>;
AugmenterRegistry& augmentations();
void register_builtin_augmentations();

/// Reads all of `data.augment`. `image` of rank 0: the data has none, so every key is an error; or keys are only described.
Augmenters read_augmenters(ConfigSection& section, const Shape& image);
std::int64_t padding_of(const Augmenters& augmenters);

/// Changes one image's bytes, and returns the window to take of it. Empty where nothing is asked for.
using ImageChange = std::function<Augmentation(std::int64_t sample, std::span<std::uint8_t> bytes, const Shape& shape)>;
/// `augmenters` outlives what is returned.
ImageChange image_change(const Augmenters& augmenters, std::uint64_t seed, std::int64_t epoch);

}  // namespace starling
