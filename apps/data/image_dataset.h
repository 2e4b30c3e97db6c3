#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/data/image_collate.h"

namespace starling {

struct ImageInfo {
  Shape image;  ///< one sample: {H, W, C}
  std::int64_t classes = 0;
  std::int64_t train_samples = 0, test_samples = 0;     ///< after data.limit and data.test_limit
  std::array<double, 4> mean{}, std{};                  ///< data.normalize, per channel
  std::string complexity = {};                          ///< see DatasetInfo
  std::vector<std::string> class_names = {};            ///< see DatasetInfo
  std::optional<Shape> test_image = {};                 ///< see ImageCollate
  std::optional<PictureRule> pictures = {};             ///< see ImageCollate
  std::optional<ImageGrowth> growth = {};               ///< see ImageCollate
  std::map<std::string, std::uint32_t> checksums = {};  ///< see DatasetInfo
  std::optional<TestShare> test_share = {};             ///< see DatasetInfo
  std::string contents = {};                            ///< see DatasetInfo
};

/// uint8 images with one label each: the tensors "image" and "label".
class ImageDataset : public Dataset {
 public:
  virtual ImageInfo images() const = 0;
  std::int64_t label(Split split, std::int64_t index) const override = 0;
  /// The H×W×C bytes of one image.
  virtual void image(Split split, std::int64_t index, std::uint8_t* out) const = 0;

  DatasetInfo info() const final;
  void read(Split split, std::int64_t index, std::span<std::byte* const> out) const final;

 protected:
  static void write_label(std::int64_t label, std::byte* out);
};

}  // namespace starling
