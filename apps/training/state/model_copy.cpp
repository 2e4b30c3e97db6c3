#include "apps/training/state/model_copy.h"

#include <cmath>
#include <cstdlib>

#include "core/error.h"
#include "core/operations/pointwise.h"
#include "core/trace.h"

namespace starling {
namespace {

constexpr const char* kUpdates = "ema_updates";

}  // namespace

ModelCopy::ModelCopy(std::string prefix, Backend& backend, const std::vector<Bucket>& buckets,
                     Model& model, Replica* replica)
    : backend_(backend),
      bucket_list_(buckets),
      model_(model),
      replica_(replica),
      prefix_(std::move(prefix)) {
  for (const Bucket& bucket : buckets) {
    const Shape& shape = bucket.parameters.shape();
    parameters_.push_back(allocate_in(replica, backend, shape, bucket.parameters.dtype(),
                                      bucket.own.value_or(ElementRange{0, shape.elements()})));
  }
  for (const ModelBuffer* buffer : model.buffers()) {
    buffers_.emplace_back();
    if (!is_floating(buffer->value.dtype())) continue;
    buffers_.back() = Tensor(backend, buffer->value.shape(), buffer->value.dtype());
    backend.fill(buffers_.back(), 0.0);
  }
}

void ModelCopy::for_each(const Visit& visit) const {
  for (std::size_t b = 0; b < parameters_.size(); ++b)
    visit(bucket_list_[b].own_part(parameters_[b]),
          bucket_list_[b].own_part(bucket_list_[b].parameters));
  for_each_buffer(
      [&](const std::string&, const Tensor& copy, const Tensor& own) { visit(copy, own); });
}

void ModelCopy::for_each_buffer(const VisitNamed& visit) const {
  for (std::size_t k = 0; k < buffers_.size(); ++k) {
    const ModelBuffer& own = *model_.buffers()[k];
    if (buffers_[k]) visit(own.name, buffers_[k], own.value);
  }
}

template <class Use>
void ModelCopy::each_parameter(std::size_t bucket, const Tensor& whole, const Use& use) const {
  for (const BucketSlot& slot : bucket_list_[bucket].layout->slots)
    use(prefix_ + "." + slot.parameter->name, whole.slice(slot.offset, slot.parameter->shape),
        slot.parameter->layout);
}

void ModelCopy::save(SafetensorsFile& file, PutTensor put) const {
  const auto add = [&](const std::string& name, const Tensor& tensor, TensorLayout layout) {
    put(tensor, layout, file.tensors[name]);
  };
  for (std::size_t b = 0; b < parameters_.size(); ++b)
    each_parameter(b, whole_in(replica_, bucket_list_[b], parameters_[b]), add);
  for_each_buffer([&](const std::string& name, const Tensor& copy, const Tensor&) {
    to_file_tensor(copy, TensorLayout::kPlain, file.tensors[prefix_ + "." + name]);
  });
}

void ModelCopy::load_parameters(const SafetensorsFile& file, const std::string& source,
                                bool share) {
  const auto take = [&](const std::string& name, const Tensor& tensor, TensorLayout layout) {
    load_tensor(file, source, name, tensor, layout);
  };
  for (std::size_t b = 0; b < parameters_.size(); ++b)
    fill_in(replica_, bucket_list_[b], parameters_[b], share,
            [&](const Tensor& whole) { each_parameter(b, whole, take); });
}

void ModelCopy::load(const SafetensorsFile& file, const std::string& source, bool own_alone) {
  if (!own_alone) load_parameters(file, source, false);
  for_each_buffer([&](const std::string& name, const Tensor& copy, const Tensor&) {
    load_tensor(file, source, prefix_ + "." + name, copy, TensorLayout::kPlain);
  });
}

void ModelCopy::share(const SafetensorsFile& file, const std::string& source) {
  if (replica_ && !replica_->shares_memory()) load_parameters(file, source, true);
}

void load_tensor(const SafetensorsFile& file, const std::string& source, const std::string& name,
                 const Tensor& tensor, TensorLayout layout) {
  const auto it = file.tensors.find(name);
  if (it == file.tensors.end())
    fail(ExitCode::kUsage, "resume", {.file = source}, "tensor {} is missing", name);
  from_file_tensor(it->second, tensor, layout, source + ": tensor " + name);
}

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
  file.metadata[kUpdates] = std::to_string(updates_);
}

void ModelAverage::load(const SafetensorsFile& file, const std::string& source, bool own_alone) {
  const auto entry = file.metadata.find(kUpdates);
  if (entry == file.metadata.end())
    fail(ExitCode::kUsage, "resume", {.file = source}, "it lacks the entry '{}'", kUpdates);
  ModelCopy::load(file, source, own_alone);
  updates_ = std::atoll(entry->second.c_str());
}

double LookaheadSettings::share(std::int64_t step, std::int64_t total) const {
  return power == 0.0
             ? decay
             : decay * std::pow(static_cast<double>(step) / static_cast<double>(total), power);
}

void Lookahead::begin() {
  for_each([&](const Tensor& slow, const Tensor& own) { backend_.copy(own, slow); });
}

bool Lookahead::meet(const Tensor& slow, const Tensor& own, std::int64_t step,
                     std::int64_t total) const {
  const bool due = step % settings_.every == 0;
  if (due) {
    const double share = settings_.share(step, total);
    backend_.weighted_sum(
        {.in = {slow, own}, .weight = {share, 1.0 - share}, .terms = 2, .out = slow});
  }
  if (due || step == total) backend_.copy(slow, own);
  return due || step == total;
}

void Lookahead::after_update(std::size_t bucket, std::int64_t step, std::int64_t total) const {
  const Bucket& b = bucket_list_[bucket];
  const Tensor own = b.own_part(b.parameters);
  if (meet(b.own_part(parameters_[bucket]), own, step, total) && b.low)
    backend_.cast({.x = own, .y = b.own_part(b.low)});
}

void Lookahead::after_step(std::int64_t step, std::int64_t total) const {
  const TraceSpan span("lookahead", {}, TraceLane::kUpdate);
  for_each_buffer([&](const std::string&, const Tensor& slow, const Tensor& own) {
    meet(slow, own, step, total);
  });
}

}  // namespace starling
