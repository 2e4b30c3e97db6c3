#include "apps/training/state/model_copy.h"

#include "apps/inference/model_file.h"
#include "core/error.h"

namespace starling {

ModelCopy::ModelCopy(Backend& backend, const std::vector<Bucket>& buckets, Model& model)
    : bucket_list_(buckets), model_(model) {
  for (const Bucket& bucket : buckets) {
    parameters.emplace_back(backend, bucket.parameters.shape(), bucket.parameters.dtype());
    backend.fill(parameters.back(), 0.0);  // the padding too
  }
  for (const ModelBuffer* buffer : model.buffers()) {
    buffers.emplace_back();
    if (!is_floating(buffer->value.dtype())) continue;
    buffers.back() = Tensor(backend, buffer->value.shape(), buffer->value.dtype());
    backend.fill(buffers.back(), 0.0);
  }
}

template <class Visit>
void ModelCopy::each_tensor(const std::string& prefix, const Visit& visit) const {
  for (std::size_t b = 0; b < parameters.size(); ++b) {
    for (const BucketSlot& slot : bucket_list_[b].layout->slots)
      visit(prefix + "." + slot.parameter->name,
            parameters[b].slice(slot.offset, slot.parameter->shape), slot.parameter->layout);
  }
  for (std::size_t k = 0; k < buffers.size(); ++k) {
    if (buffers[k])
      visit(prefix + "." + model_.buffers()[k]->name, buffers[k], TensorLayout::kPlain);
  }
}

void ModelCopy::save(const std::string& prefix, SafetensorsFile& file) const {
  each_tensor(prefix, [&](const std::string& name, const Tensor& tensor, TensorLayout layout) {
    to_file_tensor(tensor, layout, file.tensors[name]);
  });
}

void ModelCopy::load(const std::string& prefix, const SafetensorsFile& file,
                     const std::string& source) {
  each_tensor(prefix, [&](const std::string& name, const Tensor& tensor, TensorLayout layout) {
    const auto it = file.tensors.find(name);
    if (it == file.tensors.end())
      fail(ExitCode::kUsage, "resume", {.file = source}, "tensor {} is missing", name);
    from_file_tensor(it->second, tensor, layout, source + ": tensor " + name);
  });
}

}  // namespace starling
