#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "core/dtype.h"
#include "core/error.h"
#include "core/shape.h"

// What lives in core: everything that the rest stands on, and nothing that knows of training.
// tensor, shape, dtype: numbers and where they lie. operations: the one list of what a backend can
// do, each with what it reads and writes; backend: who carries them out, with streams and events;
// forwarding_backend and meta_backend: one that hands on, one that has shapes alone. autograd:
// tape, gradients, the moment a parameter is ready. config, setting, registry, config_doc: JSON
// with errors that name the key. error, log, trace, device_trace: what a user sees. file_io, json,
// safetensors, text, random, philox. It uses fmt, spdlog and nlohmann-json, and no other folder.

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

/// A block of memory of one backend. Freed (given back to the backend's caching allocator) with the
/// last handle.
class Storage {
 public:
  virtual ~Storage() = default;
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  /// First byte, aligned to at least 64 bytes; null on the meta backend, where Tensor::raw() says
  /// so by an error.
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
  /// True where no other handle shares the storage, so that it may be overwritten.
  bool exclusive() const { return storage_.use_count() == 1; }

  /// True for two handles to the same numbers under one shape.
  bool same_as(const Tensor& other) const {
    return storage_ == other.storage_ && offset_ == other.offset_ && shape_ == other.shape_ &&
           dtype_ == other.dtype_;
  }

  /// Start of the numbers (device memory on a GPU). T must be the tensor's dtype. On the meta
  /// backend, where a layer is traced before training, there are no numbers: this, raw() and span()
  /// throw Error(kInternal) that says what to do instead.
  template <class T>
  T* data() const {
    require(DTypeOf<T>::value == dtype_, "tensor", "a {} tensor was read as {}", name_of(dtype_),
            name_of(DTypeOf<T>::value));
    return reinterpret_cast<T*>(raw());
  }
  /// The memory, whatever the dtype; null for an empty handle.
  std::byte* raw() const {
    if (storage_ && storage_->data()) return storage_->data() + offset_;
    if (elements() != 0 && storage_) fail_without_memory();
    return nullptr;
  }
  /// The numbers of a CPU tensor.
  template <class T>
  std::span<T> span() const {
    return {data<T>(), static_cast<std::size_t>(elements())};
  }

  /// The same memory under another shape with as many elements.
  Tensor reshaped(const Shape& shape) const;
  /// `shape.elements()` elements from element `first` on, as a view.
  Tensor slice(std::int64_t first, const Shape& shape) const;

 private:
  [[noreturn]] void fail_without_memory() const;

  std::shared_ptr<Storage> storage_;
  std::size_t offset_ = 0;
  Shape shape_;
  DType dtype_ = DType::kFloat32;
};

}  // namespace starling
