#include "apps/data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/text.h"
#include "layers/functions.h"

namespace starling {

const TensorInfo* DatasetInfo::find(std::string_view name) const {
  const auto it = std::find_if(tensors.begin(), tensors.end(),
                               [&](const TensorInfo& tensor) { return tensor.name == name; });
  return it == tensors.end() ? nullptr : &*it;
}

bool DatasetInfo::ignores() const {
  const TensorInfo* targets = find("targets");
  return targets && targets->dtype == DType::kInt32 && targets->classes > 0 && !all_count;
}

std::vector<std::string> DatasetInfo::names_of_classes(std::int64_t count) const {
  std::vector<std::string> names;
  for (std::int64_t c = 0; c < count; ++c) {
    const auto known = static_cast<std::size_t>(c);
    names.push_back(known < class_names.size() ? class_names[known] : std::to_string(c));
  }
  return names;
}

std::string DatasetInfo::sample_text() const {
  std::string text;
  for (const TensorInfo& tensor : tensors) {
    if (!text.empty()) text += ", ";
    if (tensor.pixels) {
      text += tensor.shape.text();
    } else if (tensor.classes > 0 && tensor.shape.rank() == 0) {
      text += counted(tensor.classes, "class");
    } else {
      text += fmt::format("{} {} of {}", tensor.name, tensor.shape.text(), name_of(tensor.dtype));
    }
  }
  return text;
}

SampleMemory::SampleMemory(const DatasetInfo& info) {
  for (const TensorInfo& tensor : info.tensors) {
    memory_.emplace_back(tensor.bytes());
    places.push_back(memory_.back().data());
  }
}

FirstSamples first_samples(const Dataset& dataset, std::int64_t count) {
  const DatasetInfo info = dataset.info();
  const TensorInfo* image = info.find("image");
  if (count <= 0 || !image || !image->pixels) return {};
  FirstSamples result{.shape = image->shape, .numbers = {}};
  const auto size = static_cast<std::size_t>(image->shape.elements()),
             channels = static_cast<std::size_t>(image->shape.back());
  const SampleMemory sample(info);
  const std::byte* pixels = sample.places[static_cast<std::size_t>(image - info.tensors.data())];
  for (std::int64_t i = 0; i < std::min(count, info.train_samples); ++i) {
    dataset.read(Dataset::Split::kTrain, i, sample.places);
    for (std::size_t k = 0; k < size; ++k) {
      const std::size_t c = k % channels;
      result.numbers.push_back(math::normalized_pixel<double>(
          static_cast<std::uint8_t>(pixels[k]), image->pixels->mean[c], image->pixels->std[c]));
    }
  }
  return result;
}

std::string implausible_values(const Dataset& dataset) {
  constexpr std::int64_t kLooked = 4096;
  const DatasetInfo info = dataset.info();
  const SampleMemory sample(info);
  float largest = 1e4F;  // larger values are reported
  std::string where;
  for (std::int64_t i = 0; i < std::min(kLooked, info.train_samples); ++i) {
    dataset.read(Dataset::Split::kTrain, i, sample.places);
    for (std::size_t t = 0; t < info.tensors.size(); ++t) {
      const TensorInfo& tensor = info.tensors[t];
      if (tensor.dtype != DType::kFloat32) continue;
      const auto* numbers = reinterpret_cast<const float*>(sample.places[t]);
      for (std::int64_t k = 0; k < tensor.shape.elements(); ++k) {
        if (std::abs(numbers[k]) <= largest) continue;
        largest = std::abs(numbers[k]);
        where = tensor.name;
      }
    }
  }
  return where.empty() ? "" : fmt::format("numbers up to {:.3g} ({})", largest, where);
}

std::vector<std::int32_t> training_classes(const Dataset& dataset) {
  const DatasetInfo info = dataset.info();
  std::vector<std::int32_t> classes(static_cast<std::size_t>(info.train_samples));
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const std::int64_t label = dataset.label(Dataset::Split::kTrain, static_cast<std::int64_t>(i));
    if (label < 0 || label >= info.classes) {
      fail(ExitCode::kUsage, "data", "training sample {} has label {}, the classes are 0 to {}", i,
           label, info.classes - 1);
    }
    classes[i] = static_cast<std::int32_t>(label);
  }
  return classes;
}

std::int64_t Dataset::label(Split, std::int64_t) const {
  fail(ExitCode::kUsage, "data",
       "samples of this data set have no class (label()), which data.partition, data.sampler "
       "class_balanced and loss.class_weights balanced need; leave these out");
}

std::int64_t Dataset::counted_targets(std::int64_t index) const {
  const DatasetInfo own = info();
  const SampleMemory sample(own);
  read(Split::kTrain, index, sample.places);
  const TensorInfo* targets = own.find("targets");
  const std::int64_t count = targets->shape.elements();
  const auto* values = reinterpret_cast<const std::int32_t*>(
      sample.places[static_cast<std::size_t>(targets - own.tensors.data())]);
  return count - std::count(values, values + count, functions::kIgnoreIndex);
}

double Dataset::complexity(Split, std::int64_t) const {
  fail(ExitCode::kUsage, "data",
       "samples of this data set say no cost; \"data.sampler.complexity\" must be measured");
}

DatasetRegistry& datasets() {
  static DatasetRegistry registry("data set");
  return registry;
}

const Tensor* Batch::find(std::string_view name) const {
  for (const Named& named : tensors) {
    if (named.name == name) return &named.tensor;
  }
  return nullptr;
}

const Tensor& Batch::operator[](std::string_view name) const {
  if (const Tensor* found = find(name)) return *found;
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
