#include "apps/training/state/model_copy.h"

#include "core/error.h"

namespace starling {

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
  for_each_buffer(visit);
}

void ModelCopy::for_each_buffer(const Visit& visit) const {
  for (std::size_t k = 0; k < buffers_.size(); ++k) {
    if (buffers_[k]) visit(buffers_[k], model_.buffers()[k]->value);
  }
}

template <class Use>
void ModelCopy::each_parameter(std::size_t bucket, const Tensor& whole, const Use& use) const {
  for (const BucketSlot& slot : bucket_list_[bucket].layout->slots)
    use(prefix_ + "." + slot.parameter->name, whole.slice(slot.offset, slot.parameter->shape),
        slot.parameter->layout);
}

template <class Use>
void ModelCopy::each_buffer(const Use& use) const {
  for (std::size_t k = 0; k < buffers_.size(); ++k) {
    if (buffers_[k])
      use(prefix_ + "." + model_.buffers()[k]->name, buffers_[k], TensorLayout::kPlain);
  }
}

void ModelCopy::save(SafetensorsFile& file, PutTensor put) const {
  const auto add = [&](const std::string& name, const Tensor& tensor, TensorLayout layout) {
    put(tensor, layout, file.tensors[name]);
  };
  for (std::size_t b = 0; b < parameters_.size(); ++b)
    each_parameter(b, whole_in(replica_, bucket_list_[b], parameters_[b]), add);
  each_buffer([&](const std::string& name, const Tensor& tensor, TensorLayout layout) {
    to_file_tensor(tensor, layout, file.tensors[name]);
  });
}

void ModelCopy::load(const SafetensorsFile& file, const std::string& source,
                     const std::string& name, const Tensor& tensor, TensorLayout layout) const {
  const auto it = file.tensors.find(name);
  if (it == file.tensors.end())
    fail(ExitCode::kUsage, "resume", {.file = source}, "tensor {} is missing", name);
  from_file_tensor(it->second, tensor, layout, source + ": tensor " + name);
}

void ModelCopy::load(const SafetensorsFile& file, const std::string& source, bool own_alone) {
  const auto take = [&](const std::string& name, const Tensor& tensor, TensorLayout layout) {
    load(file, source, name, tensor, layout);
  };
  for (std::size_t b = 0; !own_alone && b < parameters_.size(); ++b)
    fill_in(replica_, bucket_list_[b], parameters_[b], false,
            [&](const Tensor& whole) { each_parameter(b, whole, take); });
  each_buffer(take);
}

void ModelCopy::share(const SafetensorsFile& file, const std::string& source) {
  for (std::size_t b = 0; replica_ && !replica_->shares_memory() && b < parameters_.size(); ++b)
    fill_in(replica_, bucket_list_[b], parameters_[b], true, [&](const Tensor& whole) {
      each_parameter(b, whole,
                     [&](const std::string& name, const Tensor& tensor, TensorLayout layout) {
                       load(file, source, name, tensor, layout);
                     });
    });
}

}  // namespace starling
