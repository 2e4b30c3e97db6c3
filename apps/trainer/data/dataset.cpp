#include "apps/trainer/data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/error.h"

namespace starling {

const TensorInfo* DatasetInfo::find(std::string_view name) const {
  const auto it = std::find_if(tensors.begin(), tensors.end(),
                               [&](const TensorInfo& tensor) { return tensor.name == name; });
  return it == tensors.end() ? nullptr : &*it;
}

std::vector<std::string> DatasetInfo::names_of_classes(std::int64_t count) const {
  std::vector<std::string> names;
  for (std::int64_t c = 0; c < count; ++c) {
    const auto known = static_cast<std::size_t>(c);
    names.push_back(known < class_names.size() ? class_names[known] : std::to_string(c));
  }
  return names;
}

std::int64_t ImageGrowth::side(std::int64_t epoch) const {
  if (epoch >= end_epoch) return to;
  if (epoch <= start_epoch) return from;
  const double share =
      static_cast<double>(epoch - start_epoch) / static_cast<double>(end_epoch - start_epoch);
  const double on_line = static_cast<double>(from) + share * static_cast<double>(to - from);
  const std::int64_t rounded =
      multiple * static_cast<std::int64_t>(std::nearbyint(on_line / static_cast<double>(multiple)));
  return std::clamp(rounded, from, to);
}

std::vector<std::int64_t> ImageGrowth::sides() const {
  std::vector<std::int64_t> sides{from};
  for (std::int64_t epoch = start_epoch; epoch <= end_epoch; ++epoch) {
    if (const std::int64_t next = side(epoch); next != sides.back()) sides.push_back(next);
  }
  return sides;
}

std::vector<TensorInfo> DatasetInfo::tensors_of(bool test, std::int64_t side) const {
  std::vector<TensorInfo> result = tensors;
  for (TensorInfo& tensor : result) {
    if (test && test_image && tensor.pixels) tensor.shape = *test_image;
    if (!test && side > 0 && tensor.pixels) tensor.shape = Shape{side, side, tensor.shape.back()};
  }
  return result;
}

std::string DatasetInfo::sample_text() const {
  std::string text;
  for (const TensorInfo& tensor : tensors) {
    if (!text.empty()) text += ", ";
    if (tensor.pixels) {
      text += tensor.shape.text();
    } else if (tensor.classes > 0 && tensor.shape.rank() == 0) {
      text += fmt::format("{} classes", tensor.classes);
    } else {
      text += fmt::format("{} {} of {}", tensor.name, tensor.shape.text(), name_of(tensor.dtype));
    }
  }
  return text;
}

FirstImages first_images(const Dataset& dataset, std::int64_t count) {
  const DatasetInfo info = dataset.info();
  const TensorInfo* image = info.find("image");
  if (count <= 0 || !image || !image->pixels) return {};
  FirstImages result{.image = image->shape, .numbers = {}};
  const auto size = static_cast<std::size_t>(image->shape.elements()),
             channels = static_cast<std::size_t>(image->shape.back());
  std::vector<std::vector<std::byte>> sample;
  std::vector<std::byte*> out;
  for (const TensorInfo& tensor : info.tensors) {
    sample.emplace_back(static_cast<std::size_t>(tensor.shape.elements()) * size_of(tensor.dtype));
    out.push_back(sample.back().data());
  }
  const std::byte* pixels = out[static_cast<std::size_t>(image - info.tensors.data())];
  for (std::int64_t i = 0; i < std::min(count, info.train_samples); ++i) {
    dataset.read(Dataset::Split::kTrain, i, out);
    for (std::size_t k = 0; k < size; ++k) {
      const std::size_t c = k % channels;
      result.numbers.push_back(math::normalized_pixel<double>(
          static_cast<std::uint8_t>(pixels[k]), image->pixels->mean[c], image->pixels->std[c]));
    }
  }
  return result;
}

std::int64_t Dataset::label(Split, std::int64_t) const {
  fail(ExitCode::kUsage, "data",
       "samples of this data set have no class; \"data.partition\" must be shared");
}

double Dataset::complexity(Split, std::int64_t) const {
  fail(ExitCode::kUsage, "data",
       "samples of this data set say no cost; \"data.sampler.complexity\" must be measured");
}

DatasetInfo ImageDataset::info() const {
  const ImageInfo images = this->images();
  return {
      .tensors = {{"image", images.image, DType::kUInt8, 0, PixelScale{images.mean, images.std}},
                  {"label", Shape{}, DType::kInt32, images.classes}},
      .task = "classification",
      .classes = images.classes,
      .train_samples = images.train_samples,
      .test_samples = images.test_samples,
      .complexity = images.complexity,
      .class_names = images.class_names,
      .test_image = images.test_image,
      .pictures = images.pictures,
      .growth = images.growth,
      .checksums = images.checksums,
      .test_share = images.test_share,
      .contents = images.contents};
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

DatasetRegistry& datasets() {
  static DatasetRegistry registry("data set");
  return registry;
}

const Tensor& Batch::operator[](std::string_view name) const {
  for (const Named& named : tensors) {
    if (named.name == name) return named.tensor;
  }
  std::string known;
  for (const Named& named : tensors) known += (known.empty() ? "" : ", ") + named.name;
  fail(ExitCode::kUsage, "data", "a batch of this data set has no tensor '{}'; it has: {}", name,
       known);
}

Batch empty_batch(const std::vector<TensorInfo>& tensors, Backend& backend, std::int64_t samples,
                  DType format) {
  Batch batch{.samples = samples, .format = format};
  for (const TensorInfo& tensor : tensors) {
    batch.tensors.push_back({tensor.name, Tensor(backend, tensor.shape.with_batch(samples),
                                                 tensor.pixels ? format : tensor.dtype)});
  }
  return batch;
}

}  // namespace starling
