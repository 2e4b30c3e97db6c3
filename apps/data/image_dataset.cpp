#include "apps/data/image_dataset.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

namespace starling {

DatasetInfo ImageDataset::info() const {
  const ImageInfo images = this->images();
  auto collate = std::make_shared<ImageCollate>();
  collate->test_image = images.test_image;
  collate->pictures = images.pictures;
  collate->growth = images.growth;
  return {
      .tensors = {{"image", images.image, DType::kUInt8, 0, PixelScale{images.mean, images.std}},
                  {"label", Shape{}, DType::kInt32, images.classes}},
      .task = "classification",
      .classes = images.classes,
      .train_samples = images.train_samples,
      .test_samples = images.test_samples,
      .complexity = images.complexity,
      .class_names = images.class_names,
      .checksums = images.checksums,
      .test_share = images.test_share,
      .contents = images.contents,
      .collated_by = std::move(collate)};
}

void ImageDataset::read(Split split, std::int64_t index, std::span<std::byte* const> out) const {
  image(split, index, reinterpret_cast<std::uint8_t*>(out[0]));
  write_label(label(split, index), out[1]);
}

void ImageDataset::write_label(std::int64_t label, std::byte* out) {
  using Limits = std::numeric_limits<std::int32_t>;
  const auto number =
      static_cast<std::int32_t>(std::clamp<std::int64_t>(label, Limits::min(), Limits::max()));
  std::memcpy(out, &number, sizeof number);
}

}  // namespace starling
