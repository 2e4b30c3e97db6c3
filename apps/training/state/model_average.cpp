#include "apps/training/state/model_average.h"

#include <cstdlib>

#include "core/error.h"
#include "core/operations/pointwise.h"
#include "core/trace.h"

namespace starling {
namespace {

constexpr const char* kUpdatesEntry = "ema_updates";

}  // namespace

ModelAverage::ModelAverage(const AverageSettings& settings, Backend& backend,
                           const std::vector<Bucket>& buckets, Model& model)
    : settings_(settings),
      backend_(backend),
      bucket_list_(buckets),
      model_(model),
      average_(backend, buckets, model) {}

void ModelAverage::move(const Tensor& average, const Tensor& value) const {
  if (updates_ == 0) return backend_.copy(value, average);
  backend_.weighted_sum({.in = {average, value},
                         .weight = {settings_.decay, 1.0 - settings_.decay},
                         .terms = 2,
                         .out = average});
}

void ModelAverage::after_step(std::int64_t steps) {
  if (steps % settings_.every != 0) return;
  const TraceSpan span("moving average", {}, TraceLane::kUpdate);
  for (std::size_t b = 0; b < average_.parameters.size(); ++b)
    move(average_.parameters[b], bucket_list_[b].parameters);
  for (std::size_t k = 0; k < average_.buffers.size(); ++k) {
    if (average_.buffers[k]) move(average_.buffers[k], model_.buffers()[k]->value);
  }
  ++updates_;
}

std::vector<Tensor> ModelAverage::parameters() const {
  if (updates_ > 0) return average_.parameters;
  std::vector<Tensor> own;
  for (const Bucket& bucket : bucket_list_) own.push_back(bucket.parameters);
  return own;
}

std::vector<Tensor> ModelAverage::buffers() const {
  std::vector<Tensor> result;
  for (std::size_t k = 0; k < average_.buffers.size(); ++k)
    result.push_back(updates_ > 0 && average_.buffers[k] ? average_.buffers[k]
                                                         : model_.buffers()[k]->value);
  return result;
}

void ModelAverage::save(SafetensorsFile& file) const {
  average_.save("ema", file);
  file.metadata[kUpdatesEntry] = std::to_string(updates_);
}

void ModelAverage::load(const SafetensorsFile& file, const std::string& source) {
  const auto entry = file.metadata.find(kUpdatesEntry);
  if (entry == file.metadata.end())
    fail(ExitCode::kUsage, "resume", {.file = source}, "it lacks the entry '{}'", kUpdatesEntry);
  average_.load("ema", file, source);
  updates_ = std::atoll(entry->second.c_str());
}

}  // namespace starling
