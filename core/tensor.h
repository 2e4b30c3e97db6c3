#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "core/dtype.h"
#include "core/error.h"
#include "core/shape.h"

// The folder core is the basis of all others, and independent of training. It uses fmt, spdlog and
// nlohmann-json only.
// - tensor, shape, dtype; operations: the list of a backend's operations; backend: the interface of
//   devices; forwarding_backend, meta_backend: one that forwards calls, one without data
// - autograd: tape and gradients
// - config, setting, registry, config_doc: JSON configs, with errors that name the key
// - error, log, trace, device_trace: output for users
// - file_io, json, safetensors, text, random, philox

namespace starling {

class Backend;

enum class DeviceType : std::uint8_t {
  kMeta,  ///< shapes only: no memory, no arithmetic; for tracing and dry runs
  kCpu,
  kCuda,
};

constexpr std::string_view name_of(DeviceType device) {
  switch (device) {
    case DeviceType::kMeta: return "meta";
    case DeviceType::kCpu: return "cpu";
    case DeviceType::kCuda: return "cuda";
  }
  return "?";
}

/// A block of a backend's memory. Returned to the backend's caching allocator with the last handle.
class Storage {
 public:
  virtual ~Storage() = default;
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  /// Aligned to at least 64 bytes. Null on the meta backend, where Tensor::raw() throws.
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Backend& backend() const { return *backend_; }

 protected:
  Storage(Backend& backend, std::byte* data, std::size_t bytes)
      : backend_(&backend), data_(data), bytes_(bytes) {}

 private:
  Backend* backend_;
  std::byte* data_;
  std::size_t bytes_;
};

/// A shared handle to (storage, offset, shape, dtype). Always contiguous, last dimension fastest.
/// Copying a Tensor copies the handle, not the numbers. Images are N×H×W×C, convolution weights
/// O×kH×kW×I.
class Tensor {
 public:
  Tensor() = default;
  Tensor(std::shared_ptr<Storage> storage, std::size_t byte_offset, Shape shape, DType dtype);
  /// New uninitialised memory from `backend`.
  Tensor(Backend& backend, Shape shape, DType dtype);

  explicit operator bool() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  std::int64_t elements() const { return shape_.elements(); }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype_); }
  Backend& backend() const { return storage_->backend(); }
  const std::shared_ptr<Storage>& storage() const { return storage_; }
  /// Whether no other handle shares the storage, so that it may be overwritten.
  bool exclusive() const { return storage_.use_count() == 1; }

  /// Whether both handles have the same storage, offset and shape.
  bool same_as(const Tensor& other) const {
    return storage_ == other.storage_ && offset_ == other.offset_ && shape_ == other.shape_ &&
           dtype_ == other.dtype_;
  }

  /// Address of the first element (in device memory on a GPU). T must be the tensor's dtype. On the
  /// meta backend, with which layers are traced before training, this, raw() and span() throw
  /// Error(kInternal) with a remedy.
  template <class T>
  T* data() const {
    require(DTypeOf<T>::value == dtype_, "tensor", "a {} tensor was read as {}", name_of(dtype_),
            name_of(DTypeOf<T>::value));
    return reinterpret_cast<T*>(raw());
  }
  /// The address, for any dtype; null for an empty handle.
  std::byte* raw() const {
    if (storage_ && storage_->data()) return storage_->data() + offset_;
    if (elements() != 0 && storage_) fail_without_memory();
    return nullptr;
  }
  /// The elements of a CPU tensor.
  template <class T>
  std::span<T> span() const {
    return {data<T>(), static_cast<std::size_t>(elements())};
  }

  /// A view with another shape of the same number of elements.
  Tensor reshaped(const Shape& shape) const;
  /// A view of `shape.elements()` elements starting at element `first`.
  Tensor slice(std::int64_t first, const Shape& shape) const;

 private:
  [[noreturn]] void fail_without_memory() const;

  std::shared_ptr<Storage> storage_;
  std::size_t offset_ = 0;
  Shape shape_;
  DType dtype_ = DType::kFloat32;
};

}  // namespace starling
