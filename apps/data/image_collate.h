#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "apps/data/dataset.h"

namespace starling {

/// Which part of a picture becomes a test image: its shorter side is resized, and the centre is cut
/// out.
struct PictureRule {
  std::int64_t resize = 0;  ///< pixels
  Interpolation interpolation = Interpolation::kBilinear;
};

/// Training images that grow during a run, so that the first epochs cost less (progressive
/// resizing; the formula is that of FFCV's ImageNet recipe, Leclerc et al. 2023). Sides in pixels,
/// epochs from 0.
struct ImageGrowth {
  std::int64_t from = 0, to = 0, start_epoch = 0, end_epoch = 0, multiple = 1;
  /// `from` until start_epoch, `to` from end_epoch on, between them on the line, rounded to a
  /// multiple.
  std::int64_t side(std::int64_t epoch) const;
  /// Every side that occurs, ascending.
  std::vector<std::int64_t> sides() const;
};

/// Images: tensors with `pixels` are cropped, flipped, changed, normalised and mixed, by
/// Backend::resize_pictures, change_pixels and augment_images on a device. Tensors without stay as
/// they are.
struct ImageCollate final : Collate {
  /// Of test images, where they have another height and width than training's
  std::optional<Shape> test_image = {};
  std::optional<PictureRule> pictures = {};  ///< where images are made of pictures of any size
  std::optional<ImageGrowth> growth = {};    ///< of them: training images are smaller at first

  /// What a device gets besides the tensors, as RawBatch::more.
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
  /// The tensors of a sample: in tests with images of their size, in training of `side` pixels a
  /// side where that is not 0.
  std::vector<TensorInfo> tensors(std::vector<TensorInfo> declared, bool test,
                                  std::int64_t side = 0) const;
};
/// Of a data set; one that says nothing where it has no images.
const ImageCollate& images_of(const DatasetInfo& data);

}  // namespace starling
