#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/pictures/picture.h"
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
  bool cut = false;  ///< part() has been asked: the image is a part of a larger picture already
};

/// One random change of training images: a key of `data.augment`.
class Augmenter {
 public:
  virtual ~Augmenter() = default;
  virtual void apply(const SampleRandom& random, AugmentedImage& image) const = 0;
  /// Which part of a picture becomes the image, chosen before it is decoded: for data sets of pictures of any size. None: no wish.
  virtual std::optional<PicturePart> part(const SampleRandom& random, const PictureSize& picture) const {
    return (void)random, (void)picture, std::nullopt;
  }
  /// Zero pixels that the window's offsets count from, on every side.
  virtual std::int64_t padding() const { return 0; }
};
using Augmenters = std::vector<std::shared_ptr<const Augmenter>>;  ///< applied in this order

/// By their key: a maker reads the key of its name from `data.augment` and returns null where nothing is asked for. It gets the images'
/// shape, of rank 0 while keys are only described.
using AugmenterRegistry = Registry<std::unique_ptr<Augmenter>, ConfigSection&, const Shape&>;
AugmenterRegistry& augmentations();
void register_builtin_augmentations();
/// That of random_resized_crop.cpp.
void register_random_resized_crop(AugmenterRegistry& registry);

/// Reads all of `data.augment` but `interpolation`. `image` of rank 0: the data has none, so every key is an error; or keys are only
/// described.
Augmenters read_augmenters(ConfigSection& section, const Shape& image);
std::int64_t padding_of(const Augmenters& augmenters);

/// What an epoch does to its images. `augmenters` outlives it.
class ImageChange {
 public:
  ImageChange() = default;
  ImageChange(const Augmenters& augmenters, std::uint64_t seed, std::int64_t epoch);
  /// Whether anything is asked for.
  explicit operator bool() const { return augmenters_ != nullptr; }
  /// Changes one image's bytes, and returns the window to take of it. `cut`: see AugmentedImage.
  Augmentation operator()(std::int64_t sample, std::span<std::uint8_t> bytes, const Shape& shape, bool cut = false) const;
  /// See Augmenter::part().
  std::optional<PicturePart> part(std::int64_t sample, const PictureSize& picture) const;

 private:
  const Augmenters* augmenters_ = nullptr;  ///< null: nothing is asked for
  std::uint64_t seed_ = 1;
  std::int64_t epoch_ = 0;
  std::int32_t centre_ = 0;
};
inline ImageChange image_change(const Augmenters& augmenters, std::uint64_t seed, std::int64_t epoch) { return {augmenters, seed, epoch}; }

}  // namespace starling
