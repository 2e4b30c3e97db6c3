#include "apps/trainer/state/model_average.h"

#include <cstdlib>

#include "apps/inference/model_file.h"
#include "core/error.h"
#include "core/trace.h"

namespace starling {
namespace {

constexpr const char* kUpdatesEntry = "ema_updates";

}  // namespace

ModelAverage::ModelAverage(const AverageSettings& settings, Backend& backend, const std::vector<Bucket>& buckets, Model& model)
    : settings_(settings), backend_(backend), bucket_list_(buckets), model_(model) {
  for (const Bucket& bucket : buckets) {
    parameters_.emplace_back(backend, bucket.parameters.shape(), bucket.parameters.dtype());
    backend.fill(parameters_.back(), 0.0);  // the padding too
  }
  for (const ModelBuffer* buffer : model.buffers()) {
    buffers_.emplace_back();
    if (!is_floating(buffer->value.dtype())) continue;
    buffers_.back() = Tensor(backend, buffer->value.shape(), buffer->value.dtype());
    backend.fill(buffers_.back(), 0.0);
  }
}

void ModelAverage::move(const Tensor& average, const Tensor& value) const {
  if (updates_ == 0) return backend_.copy(value, average);
  backend_.weighted_sum({.in = {average, value}, .weight = {settings_.decay, 1.0 - settings_.decay}, .terms = 2, .out = average});
}

void ModelAverage::after_step(std::int64_t steps) {
  if (steps % settings_.every != 0) return;
  const TraceSpan span("moving average", {}, TraceLane::kUpdate);
  for (std::size_t b = 0; b < parameters_.size(); ++b) move(parameters_[b], bucket_list_[b].parameters);
  for (std::size_t k = 0; k < buffers_.size(); ++k) {
    if (buffers_[k]) move(buffers_[k], model_.buffers()[k]->value);
  }
  ++updates_;
}

std::vector<Tensor> ModelAverage::parameters() const {
  if (updates_ > 0) return parameters_;
  std::vector<Tensor> own;
  for (const Bucket& bucket : bucket_list_) own.push_back(bucket.parameters);
  return own;
}

std::vector<Tensor> ModelAverage::buffers() const {
  std::vector<Tensor> result;
  for (std::size_t k = 0; k < buffers_.size(); ++k)
    result.push_back(updates_ > 0 && buffers_[k] ? buffers_[k] : model_.buffers()[k]->value);
  return result;
}

template <class Visit>
void ModelAverage::each_tensor(const Visit& visit) const {
  for (std::size_t b = 0; b < parameters_.size(); ++b) {
    for (const BucketSlot& slot : bucket_list_[b].layout->slots)
      visit("ema." + slot.parameter->name, parameters_[b].slice(slot.offset, slot.parameter->shape), slot.parameter->layout);
  }
  for (std::size_t k = 0; k < buffers_.size(); ++k) {
    if (buffers_[k]) visit("ema." + model_.buffers()[k]->name, buffers_[k], TensorLayout::kPlain);
  }
}

void ModelAverage::save(SafetensorsFile& file) const {
  each_tensor(
      [&](const std::string& name, const Tensor& tensor, TensorLayout layout) { to_file_tensor(tensor, layout, file.tensors[name]); });
  file.metadata[kUpdatesEntry] = std::to_string(updates_);
}

void ModelAverage::load(const SafetensorsFile& file, const std::string& source) {
  const auto entry = file.metadata.find(kUpdatesEntry);
  if (entry == file.metadata.end()) fail(ExitCode::kUsage, "resume", {.file = source}, "it lacks the entry '{}'", kUpdatesEntry);
  each_tensor([&](const std::string& name, const Tensor& tensor, TensorLayout layout) {
    const auto it = file.tensors.find(name);
    if (it == file.tensors.end()) fail(ExitCode::kUsage, "resume", {.file = source}, "tensor {} is missing", name);
    from_file_tensor(it->second, tensor, layout, source + ": tensor " + name);
  });
  updates_ = std::atoll(entry->second.c_str());
}

}  // namespace starling
