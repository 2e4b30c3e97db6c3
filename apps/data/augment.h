#pragma once

#include <array>
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

/// The window that a batch takes of a padded image, and whether it is mirrored. Costs nothing: it
/// is taken where bytes become numbers.
struct Augmentation {
  std::int32_t offset_y = 0, offset_x = 0, flip = 0;
  friend bool operator==(const Augmentation&, const Augmentation&) = default;
};

/// A rectangle of the image as the model sees it that one number takes the place of, after
/// normalising. Empty: no change. A row of AugmentImages::boxes.
struct ErasedBox {
  std::int32_t top = 0, left = 0, bottom = 0, right = 0;
};

/// How much of each image of a batch stays its own, where the rest is its neighbour's: a row of
/// AugmentImages::mix. Inside the rectangle nothing does.
struct BatchMix {
  std::int32_t own = math::kWholeShare, top = 0, left = 0, bottom = 0, right = 0;
  /// Share of a whole image that stays its own, which is its class's share of the target.
  float share(const Shape& image) const {
    const double inside = static_cast<double>(bottom - top) * static_cast<double>(right - left);
    const auto pixels = static_cast<double>(image[0] * image[1]);
    return static_cast<float>(own * ((pixels - inside) / pixels) / math::kWholeShare);
  }
};

/// The random numbers of one image in one epoch; they depend on (seed, epoch, sample) alone, so an
/// image looks the same on any rank. Those of a batch are its first sample's.
struct SampleRandom {
  std::uint64_t seed = 1;
  std::int64_t epoch = 0, sample = 0;
  /// Words 0 and 1 of draw 0 are the crop's, word 2 is the flip's; others take draws of their own,
  /// see AugmentDraw.
  Philox4x32 draw(std::uint32_t number = 0) const {
    return random_bits(seed, RandomStream::kAugment, static_cast<std::uint32_t>(epoch),
                       (std::uint64_t{number} << 40) | static_cast<std::uint64_t>(sample));
  }
};
/// Where the draws of each augmentation begin. Those of plug-ins had better begin at 1024.
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

/// A training image that is being changed: first its bytes, then the window on them.
class AugmentedImage {
 public:
  /// `whole`: the window that is the image as it is. `later`: room for steps that another than this
  /// image's owner carries out; the first that is kNone ends them. `resize`: makes the bytes, which
  /// another resizes else.
  AugmentedImage(std::span<std::uint8_t> bytes, const Shape& shape, const Augmentation& whole,
                 std::span<PixelStep> later = {}, std::function<void()> resize = {})
      : window(whole),
        bytes_(bytes),
        shape_(shape),
        whole_(whole),
        later_(later),
        resize_(std::move(resize)) {}

  const Shape& shape() const { return shape_; }
  /// A change of the bytes: at once, or left to the device where its steps have room.
  void change(const PixelStep& step);
  /// Takes the window now, for what depends on what is seen: the bytes are then the image as the
  /// model gets it.
  void settle();
  /// H×W×C bytes to look at or change by oneself. Steps that were left to the device are carried
  /// out first; change() saves that.
  std::span<std::uint8_t> bytes();
  ImageBytes pixels() { return {bytes().data(), shape_[0], shape_[1], shape_[2]}; }

  Augmentation window;
  /// True where part() has been asked: the image is a part of a larger picture already
  bool cut = false;
  /// The augmenter's own to set, after normalising; see Augmenter::erases()
  std::span<ErasedBox> boxes = {};

 private:
  std::span<std::uint8_t> bytes_;
  Shape shape_;
  Augmentation whole_;
  std::span<PixelStep> later_;
  std::size_t waiting_ = 0;       ///< of later_
  std::function<void()> resize_;  ///< empty: the bytes are there
};

/// The order in which augmentations are applied: that of torchvision's reference scripts. Within a
/// stage they go by name.
enum class AugmentStage : std::uint8_t { kCrop, kFlip, kColor, kErase, kMix };

/// One random change of training images: a key of `data.augment`.
class Augmenter {
 public:
  virtual ~Augmenter() = default;
  virtual AugmentStage stage() const { return AugmentStage::kColor; }
  virtual void apply(const SampleRandom& random, AugmentedImage& image) const = 0;
  /// Which part of a picture becomes the image, chosen before it is decoded: for data sets of
  /// pictures of any size. None: no wish.
  virtual std::optional<PicturePart> part(const SampleRandom& random,
                                          const PictureSize& picture) const {
    return (void)random, (void)picture, std::nullopt;
  }
  /// Steps that apply() gives to AugmentedImage::change() at most, one for settle() among them, so
  /// that a device has room for them. `cut`: of images that part() was asked about.
  virtual std::int64_t steps(bool cut) const { return (void)cut, 0; }
  /// Zero pixels that the window's offsets count from, on every side.
  virtual std::int64_t padding() const { return 0; }
  /// Numbers that take the place of rectangles, one for each that apply() may set.
  virtual std::vector<double> erases() const { return {}; }
  /// Mixes the images of a batch: mix() is asked once for each, and apply() does nothing. The key's
  /// name; empty: does not.
  virtual std::string mixes() const { return {}; }
  virtual BatchMix mix(const SampleRandom& random, const Shape& image) const {
    return (void)random, (void)image, BatchMix{};
  }
};
using Augmenters = std::vector<std::shared_ptr<const Augmenter>>;  ///< applied in this order

/// Augmentations by their key: a maker reads the key of its name from `data.augment` and returns
/// null where nothing is asked for. It gets the images' shape, of rank 0 while keys are only
/// described.
using AugmenterRegistry = Registry<std::unique_ptr<Augmenter>, ConfigSection&, const Shape&>;
AugmenterRegistry& augmentations();
void register_builtin_augmentations();
/// Registers the augmentations of the files that are named so.
void register_random_resized_crop(AugmenterRegistry& registry);
void register_color_jitter(AugmenterRegistry& registry);
void register_auto_augment(AugmenterRegistry& registry);
void register_erasing(AugmenterRegistry& registry);
void register_mixing(AugmenterRegistry& registry);

/// Error(kUsage) where images have neither 1 nor 3 channels, which is what `key` is defined for.
void check_color_channels(ConfigSection& section, const char* key, const Shape& image);
/// Two numbers [least, most] of a key.
struct NumberRange {
  double least = 0, most = 0;
};
NumberRange read_range(ConfigSection& section, const char* key, NumberRange usual, Range allowed,
                       const char* doc);

/// Reads all of `data.augment` but `interpolation`. `image` of rank 0: the data has none, so every
/// key is an error; or keys are only described.
Augmenters read_augmenters(ConfigSection& section, const Shape& image);
std::int64_t padding_of(const Augmenters& augmenters);
/// The most steps of one image.
std::int64_t steps_of(const Augmenters& augmenters, bool cut);
/// All rectangles that each image may lose: the numbers in their places.
std::vector<double> erased_values(const Augmenters& augmenters);
/// The key that mixes the images of a batch; empty: none does.
std::string mixing_key(const Augmenters& augmenters);

/// What an epoch does to its images. `augmenters` outlives it.
class ImageChange {
 public:
  ImageChange() = default;
  ImageChange(const Augmenters& augmenters, std::uint64_t seed, std::int64_t epoch);
  /// Whether anything is asked for.
  explicit operator bool() const { return augmenters_ != nullptr; }
  /// Changes one image's bytes, and returns the window to take of it. `cut`: see AugmentedImage.
  /// Writes all of `boxes`, of which there are as many as erased_values(augmenters), and all of
  /// `later`: what is left to do to the bytes before the window is taken. `resize`: see
  /// AugmentedImage.
  Augmentation operator()(std::int64_t sample, std::span<std::uint8_t> bytes, const Shape& shape,
                          bool cut = false, std::span<ErasedBox> boxes = {},
                          std::span<PixelStep> later = {}, std::function<void()> resize = {}) const;
  /// See Augmenter::part().
  std::optional<PicturePart> part(std::int64_t sample, const PictureSize& picture) const;
  /// How the batch that begins with this sample is mixed. Of several ways one is chosen, each as
  /// likely.
  BatchMix mix(std::int64_t first_sample, const Shape& image) const;

  /// Numbers that stand for the batch's samples in what is drawn, where a sample may come again in
  /// the epoch; they outlive this.
  void set_draws(std::span<const std::int64_t> draws) { draws_ = draws; }
  /// What stands for the batch's sample number `place`.
  std::int64_t drawn(std::size_t place, std::int64_t sample) const {
    return draws_.empty() ? sample : draws_[place];
  }

 private:
  const Augmenters* augmenters_ = nullptr;  ///< null: nothing is asked for
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
