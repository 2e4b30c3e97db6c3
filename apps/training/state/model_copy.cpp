#include "apps/training/state/model_copy.h"

#include "apps/inference/model_file.h"
#include "core/error.h"

namespace starling {

ModelCopy::ModelCopy(std::string prefix, Backend& backend, const std::vector<Bucket>& buckets,
                     Model& model, const Allocate& allocate)
    : backend_(backend), bucket_list_(buckets), model_(model), prefix_(std::move(prefix)) {
  for (const Bucket& bucket : buckets) {
    const Shape& shape = bucket.parameters.shape();
    const DType dtype = bucket.parameters.dtype();
    if (allocate) {
      parameters_.push_back(allocate(shape, dtype));
    } else {
      parameters_.emplace_back(backend, shape, dtype);
      backend.fill(parameters_.back(), 0.0);  // the padding too
    }
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
  for_each_buffer(visit);
}

void ModelCopy::for_each_buffer(const Visit& visit) const {
  for (std::size_t k = 0; k < buffers_.size(); ++k) {
    if (buffers_[k]) visit(buffers_[k], model_.buffers()[k]->value);
  }
}

template <class Use>
void ModelCopy::each_of_file(const Use& use) const {
  for (std::size_t b = 0; b < parameters_.size(); ++b) {
    for (const BucketSlot& slot : bucket_list_[b].layout->slots)
      use(prefix_ + "." + slot.parameter->name,
          parameters_[b].slice(slot.offset, slot.parameter->shape), slot.parameter->layout, false);
  }
  for (std::size_t k = 0; k < buffers_.size(); ++k) {
    if (buffers_[k])
      use(prefix_ + "." + model_.buffers()[k]->name, buffers_[k], TensorLayout::kPlain, true);
  }
}

void ModelCopy::save(SafetensorsFile& file) const {
  each_of_file([&](const std::string& name, const Tensor& tensor, TensorLayout layout, bool) {
    to_file_tensor(tensor, layout, file.tensors[name]);
  });
}

void ModelCopy::load(const SafetensorsFile& file, const std::string& source, bool own_alone) {
  each_of_file([&](const std::string& name, const Tensor& tensor, TensorLayout layout, bool own) {
    if (own_alone && !own) return;
    const auto it = file.tensors.find(name);
    if (it == file.tensors.end())
      fail(ExitCode::kUsage, "resume", {.file = source}, "tensor {} is missing", name);
    from_file_tensor(it->second, tensor, layout, source + ": tensor " + name);
  });
}

}  // namespace starling
