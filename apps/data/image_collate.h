#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "apps/data/dataset.h"

namespace starling {

/// How a picture becomes a test image: its shorter side is resized, then the centre is cropped.
struct PictureRule {
  std::int64_t resize = 0;  ///< pixels
  Interpolation interpolation = Interpolation::kBilinear;
};

/// Training images that grow during a run, so that the first epochs cost less (progressive
/// resizing; the formula is that of FFCV's ImageNet recipe, Leclerc et al. 2023). Sides in pixels,
/// epochs from 0.
struct ImageGrowth {
  std::int64_t from = 0, to = 0, start_epoch = 0, end_epoch = 0, multiple = 1;
  /// The side in an epoch: `from` until start_epoch, `to` from end_epoch on, linear between,
  /// rounded to a multiple.
  std::int64_t side(std::int64_t epoch) const;
  /// All sides that occur, ascending.
  std::vector<std::int64_t> sides() const;
};

/// Collate for tensors with `pixels`, which are cropped, flipped, changed, normalised and mixed, on
/// a device by Backend::resize_pictures, change_pixels and augment_images. Other tensors are only
/// stacked.
struct ImageCollate final : Collate {
  /// Shape of test images, if different from that of training images
  std::optional<Shape> test_image = {};
  std::optional<PictureRule> pictures = {};  ///< set if images are made from pictures of any size
  std::optional<ImageGrowth> growth = {};    ///< set if training images are smaller at first

  /// What is uploaded in addition to the tensors, as RawBatch::more.
  enum Part : std::uint8_t {
    kWindows,  ///< int32 [batch, 3] as AugmentImages::params
    kBoxes,    ///< as AugmentImages::boxes and ::mix, where something is erased or mixed
    kMix,
    kSteps,  ///< as ChangePixels::steps, where bytes are changed
    kCuts,   ///< as ResizePictures::parts and ::x, where images are made of pictures
    kPool,
  };

  const char* unit() const override { return "img"; }
  std::unique_ptr<BatchMaker> maker(const Dataset& dataset, const BatchMakerSettings& settings,
                                    Backend& backend) const override;
  void describe(const DatasetInfo& data, ModelDescription& description) const override;
  /// The tensors of a sample with the size of test images, or in training with images of `side` ×
  /// `side` pixels if `side` is not 0.
  std::vector<TensorInfo> tensors(std::vector<TensorInfo> declared, bool test,
                                  std::int64_t side = 0) const;
};
/// The data set's ImageCollate; if it has no images, a default one.
const ImageCollate& images_of(const DatasetInfo& data);

}  // namespace starling
