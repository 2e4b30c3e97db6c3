#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/pictures/picture.h"
#include "apps/pictures/pixels.h"
#include "core/config.h"
#include "core/random.h"
#include "core/registry.h"
#include "core/shape.h"
#include "kernels/math/pixel.h"

namespace starling {

/// The window that a batch takes from a padded image, and whether it is mirrored. Free of charge,
/// since it is applied while bytes are converted to floating point.
struct Augmentation {
  std::int32_t offset_y = 0, offset_x = 0, flip = 0;
  friend bool operator==(const Augmentation&, const Augmentation&) = default;
};

/// A rectangle of the model's input image that is filled with one value after normalisation. Empty:
/// no change. A row of AugmentImages::boxes.
struct ErasedBox {
  std::int32_t top = 0, left = 0, bottom = 0, right = 0;
};

/// How an image of a batch is combined with its neighbour: a row of AugmentImages::mix. Pixels
/// inside the rectangle are the neighbour's.
struct BatchMix {
  std::int32_t own = math::kWholeShare, top = 0, left = 0, bottom = 0, right = 0;
  /// Share of the whole image that remains, which is also its class's share of the target.
  float share(const Shape& image) const {
    const double inside = static_cast<double>(bottom - top) * static_cast<double>(right - left);
    const auto pixels = static_cast<double>(image[0] * image[1]);
    return static_cast<float>(own * ((pixels - inside) / pixels) / math::kWholeShare);
  }
};

/// The random numbers of one image in one epoch. They depend on (seed, epoch, sample) alone, so an
/// image is augmented the same way on every rank. A batch uses those of its first sample.
struct SampleRandom {
  std::uint64_t seed = 1;
  std::int64_t epoch = 0, sample = 0;
  /// Draw 0: words 0 and 1 are for the crop, word 2 for the flip. Other augmentations use draws of
  /// their own, see AugmentDraw.
  Philox4x32 draw(std::uint32_t number = 0) const {
    return random_bits(seed, RandomStream::kAugment, static_cast<std::uint32_t>(epoch),
                       (std::uint64_t{number} << 40) | static_cast<std::uint64_t>(sample));
  }
};
/// The first draw of each augmentation. Plug-ins should use numbers from 1024 on.
enum AugmentDraw : std::uint32_t {
  kWindowDraw = 0,
  kResizedCropDraw = 16,
  kColorJitterDraw = 32,
  kAutoAugmentDraw = 64,
  kErasingDraw = 128,
  kCutoutDraw = 160,
  kMixingDraw = 256,
};

/// [least, most)
inline double random_between(double least, double most, std::uint32_t word) {
  return least + (most - least) * (static_cast<double>(word) + 0.5) * 0x1p-32;
}
/// floor(word · bound / 2^32): an integer in [0, bound)
inline std::int64_t random_below(std::uint32_t word, std::int64_t bound) {
  return static_cast<std::int64_t>((std::uint64_t{word} * static_cast<std::uint64_t>(bound)) >> 32);
}

/// A training image during augmentation: first its bytes are changed, then a window of them is
/// chosen.
class AugmentedImage {
 public:
  /// `whole`: the window of the unaugmented image. `later`: memory for steps that are recorded here
  /// and executed afterwards by the backend; the list ends at the first kNone. `resize`: fills
  /// `bytes` on demand, for images that the backend would resize otherwise.
  AugmentedImage(std::span<std::uint8_t> bytes, const Shape& shape, const Augmentation& whole,
                 std::span<PixelStep> later = {}, std::function<void()> resize = {})
      : window(whole),
        bytes_(bytes),
        shape_(shape),
        whole_(whole),
        later_(later),
        resize_(std::move(resize)) {}

  const Shape& shape() const { return shape_; }
  /// Changes the bytes: immediately, or recorded for the backend if `later` has room.
  void change(const PixelStep& step);
  /// Applies the window now, for augmentations that depend on the visible part. Afterwards the
  /// bytes are the image as the model gets it.
  void settle();
  /// The H×W×C bytes, to read or change directly. Executes the recorded steps first, which change()
  /// avoids.
  std::span<std::uint8_t> bytes();
  ImageBytes pixels() { return {bytes().data(), shape_[0], shape_[1], shape_[2]}; }

  Augmentation window;
  /// Whether part() was asked: the image is already a crop of a larger picture
  bool cut = false;
  /// For the augmenter to set; applied after normalisation, see Augmenter::erases()
  std::span<ErasedBox> boxes = {};

 private:
  std::span<std::uint8_t> bytes_;
  Shape shape_;
  Augmentation whole_;
  std::span<PixelStep> later_;
  std::size_t waiting_ = 0;       ///< steps recorded in later_
  std::function<void()> resize_;  ///< empty: the bytes are valid
};

/// Augmentations are applied in this order, that of torchvision's reference scripts; within a stage
/// in the order of their names.
enum class AugmentStage : std::uint8_t { kCrop, kFlip, kColor, kErase, kMix };

/// One random change of training images: a key of `data.augment`.
class Augmenter {
 public:
  virtual ~Augmenter() = default;
  virtual AugmentStage stage() const { return AugmentStage::kColor; }
  virtual void apply(const SampleRandom& random, AugmentedImage& image) const = 0;
  /// For data sets of pictures of any size: which part of a picture becomes the image, chosen
  /// before it is decoded. None: no preference.
  virtual std::optional<PicturePart> part(const SampleRandom& random,
                                          const PictureSize& picture) const {
    return (void)random, (void)picture, std::nullopt;
  }
  /// The largest number of steps that apply() passes to AugmentedImage::change(), including one for
  /// settle(), so that memory for them can be allocated. `cut`: for images whose part() was asked.
  virtual std::int64_t steps(bool cut) const { return (void)cut, 0; }
  /// Width in pixels of the zero padding that the window's offsets start from.
  virtual std::int64_t padding() const { return 0; }
  /// The values that fill erased rectangles, one for each rectangle that apply() may set.
  virtual std::vector<double> erases() const { return {}; }
  /// The config key of an augmentation that mixes the images of a batch, else empty. For these
  /// mix() is called once per batch, and apply() does nothing.
  virtual std::string mixes() const { return {}; }
  virtual BatchMix mix(const SampleRandom& random, const Shape& image) const {
    return (void)random, (void)image, BatchMix{};
  }
};
using Augmenters = std::vector<std::shared_ptr<const Augmenter>>;  ///< applied in this order

/// Augmentations by their key in `data.augment`. A maker reads its key and returns null if it is
/// not set. The shape is that of the images, of rank 0 while keys are only described.
using AugmenterRegistry = Registry<std::unique_ptr<Augmenter>, ConfigSection&, const Shape&>;
AugmenterRegistry& augmentations();
void register_builtin_augmentations();
/// Registers the augmentations of the files with these names.
void register_random_resized_crop(AugmenterRegistry& registry);
void register_color_jitter(AugmenterRegistry& registry);
void register_auto_augment(AugmenterRegistry& registry);
void register_erasing(AugmenterRegistry& registry);
void register_mixing(AugmenterRegistry& registry);

/// Error(kUsage) if images do not have 1 or 3 channels, the only numbers that `key` is defined for.
void check_color_channels(ConfigSection& section, const char* key, const Shape& image);
/// A key's value of two numbers [least, most].
struct NumberRange {
  double least = 0, most = 0;
};
NumberRange read_range(ConfigSection& section, const char* key, NumberRange usual, Range allowed,
                       const char* doc);

/// Reads all of `data.augment` but `interpolation`. `image` of rank 0: the data has no images, so
/// that every key is an error; or keys are only described.
Augmenters read_augmenters(ConfigSection& section, const Shape& image);
std::int64_t padding_of(const Augmenters& augmenters);
/// The largest number of recorded steps of an image.
std::int64_t steps_of(const Augmenters& augmenters, bool cut);
/// The fill values of all rectangles that an image may lose.
std::vector<double> erased_values(const Augmenters& augmenters);
/// The key of the augmentation that mixes images; empty: none.
std::string mixing_key(const Augmenters& augmenters);

/// The augmentation of images in one epoch. `augmenters` must outlive it.
class ImageChange {
 public:
  ImageChange() = default;
  ImageChange(const Augmenters& augmenters, std::uint64_t seed, std::int64_t epoch);
  explicit operator bool() const { return augmenters_ != nullptr; }
  /// Changes one image's bytes and returns the window to take of it. Writes all of `boxes`, which
  /// has erased_values(augmenters) entries, and all of `later`: the steps that remain to be done
  /// before the window is taken. `cut`, `resize`: see AugmentedImage.
  Augmentation operator()(std::int64_t sample, std::span<std::uint8_t> bytes, const Shape& shape,
                          bool cut = false, std::span<ErasedBox> boxes = {},
                          std::span<PixelStep> later = {}, std::function<void()> resize = {}) const;
  std::optional<PicturePart> part(std::int64_t sample, const PictureSize& picture) const;
  /// How the batch that begins with this sample is mixed. If several augmentations mix, one is
  /// chosen with equal probability.
  BatchMix mix(std::int64_t first_sample, const Shape& image) const;

  /// Indices for the random draws of the batch's samples, used instead of sample numbers if a
  /// sample may occur several times in an epoch. The span must outlive this object.
  void set_draws(std::span<const std::int64_t> draws) { draws_ = draws; }
  /// The index for the draws of the batch's sample number `place`.
  std::int64_t drawn(std::size_t place, std::int64_t sample) const {
    return draws_.empty() ? sample : draws_[place];
  }

 private:
  const Augmenters* augmenters_ = nullptr;  ///< null: no augmentations
  std::uint64_t seed_ = 1;
  std::int64_t epoch_ = 0;
  std::int32_t centre_ = 0;
  std::span<const std::int64_t> draws_;
};
inline ImageChange image_change(const Augmenters& augmenters, std::uint64_t seed,
                                std::int64_t epoch) {
  return {augmenters, seed, epoch};
}

}  // namespace starling
