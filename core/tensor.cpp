#include "core/tensor.h"

#include "core/backend.h"

namespace starling {

// The checks below run for every view; their texts are made only where they fail.

Tensor::Tensor(std::shared_ptr<Storage> storage, std::size_t byte_offset, Shape shape, DType dtype)
    : storage_(std::move(storage)), offset_(byte_offset), shape_(shape), dtype_(dtype) {
  if (offset_ > storage_->bytes() || bytes() > storage_->bytes() - offset_) {
    fail(ExitCode::kInternal, "tensor",
         "a {} {} tensor at byte {} does not fit a storage of {} bytes", shape_.text(),
         name_of(dtype_), offset_, storage_->bytes());
  }
}

Tensor::Tensor(Backend& backend, Shape shape, DType dtype) : shape_(shape), dtype_(dtype) {
  storage_ = backend.allocate(bytes());
}

Tensor Tensor::reshaped(const Shape& shape) const {
  if (shape.elements() != elements()) {
    fail(ExitCode::kInternal, "tensor", "a {} tensor cannot be seen as {}", shape_.text(),
         shape.text());
  }
  Tensor result = *this;
  result.shape_ = shape;
  return result;
}

Tensor Tensor::slice(std::int64_t first, const Shape& shape) const {
  if (first < 0 || first > elements() || shape.elements() > elements() - first) {
    fail(ExitCode::kInternal, "tensor", "{} elements from element {} on lie outside a {} tensor",
         shape.elements(), first, shape_.text());
  }
  return Tensor(storage_, offset_ + static_cast<std::size_t>(first) * size_of(dtype_), shape,
                dtype_);
}

void Tensor::fail_without_memory() const {
  fail(ExitCode::kInternal, "tensor",
       "the numbers of a {} {} tensor were asked for on the backend '{}', where tensors have no "
       "memory; compute with layers/functions.h or "
       "an "
       "operation of the backend, or leave the reading out where Backend::device() is "
       "DeviceType::kMeta (docs/extending.md)",
       shape_.text(), name_of(dtype_), storage_->backend().description());
}

}  // namespace starling
