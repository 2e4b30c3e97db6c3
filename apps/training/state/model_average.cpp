#include "apps/training/state/model_average.h"

#include <cstdlib>

#include "core/error.h"
#include "core/operations/pointwise.h"
#include "core/trace.h"

namespace starling {
namespace {

constexpr const char* kUpdatesEntry = "ema_updates";

}  // namespace

void ModelAverage::after_step(std::int64_t steps) {
  if (steps % settings_.every != 0) return;
  const TraceSpan span("moving average", {}, TraceLane::kUpdate);
  for_each([&](const Tensor& average, const Tensor& own) {
    if (updates_ == 0) return backend_.copy(own, average);
    backend_.weighted_sum({.in = {average, own},
                           .weight = {settings_.decay, 1.0 - settings_.decay},
                           .terms = 2,
                           .out = average});
  });
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

void ModelAverage::save(SafetensorsFile& file, PutTensor put) const {
  ModelCopy::save(file, put);
  file.metadata[kUpdatesEntry] = std::to_string(updates_);
}

void ModelAverage::load(const SafetensorsFile& file, const std::string& source, bool own_alone) {
  const auto entry = file.metadata.find(kUpdatesEntry);
  if (entry == file.metadata.end())
    fail(ExitCode::kUsage, "resume", {.file = source}, "it lacks the entry '{}'", kUpdatesEntry);
  ModelCopy::load(file, source, own_alone);
  updates_ = std::atoll(entry->second.c_str());
}

}  // namespace starling
