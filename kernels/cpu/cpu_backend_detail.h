#pragma once

#include <vector>

#include "core/error.h"
#include "kernels/cpu/cpu_backend.h"

// What the files that implement CpuBackend share.
namespace starling {

template <class T>
const cpu::Kernels<T>& CpuBackend::kernels() const {
  if constexpr (std::is_same_v<T, float>) {
    return float_kernels_;
  } else {
    return double_kernels_;
  }
}

template <class F>
void CpuBackend::floating(const Tensor& x, const char* operation, F&& f) const {
  threads_.enter();
  require(static_cast<bool>(x), "cpu", "{}: a tensor is missing", operation);
  if (x.dtype() == DType::kFloat32) return f(float{});
  if (x.dtype() == DType::kFloat64) return f(double{});
  fail(ExitCode::kUsage, "cpu", "{} on a {} tensor: the CPU computes in fp32 (and fp64); set precision to fp32", operation,
       name_of(x.dtype()));
}

namespace cpu {

constexpr Index kElementGrain = 16384;  ///< elements: less work than this is not worth another thread

/// The tensor's numbers, or null where it is empty.
template <class T>
T* optional(const Tensor& x) {
  return x ? x.data<T>() : nullptr;
}

/// Checks that a tensor is there with `elements` elements of T.
template <class T>
T* numbers(const Tensor& x, Index elements, const char* operation, const char* name) {
  require(static_cast<bool>(x) && x.elements() == elements, "cpu", "{}: {} must have {} elements, not {}", operation, name, elements,
          x ? x.elements() : 0);
  return x.data<T>();
}
template <class T>
T* optional_numbers(const Tensor& x, Index elements, const char* operation, const char* name) {
  return x ? numbers<T>(x, elements, operation, name) : nullptr;
}

/// Temporary memory of n values of T.
template <class T>
class Workspace {
 public:
  Workspace(CachingAllocator& allocator, Index n)
      : allocator_(allocator), block_(allocator.take(static_cast<std::size_t>(n) * sizeof(T))) {}
  ~Workspace() { allocator_.give_back(block_); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  T* data() const { return reinterpret_cast<T*>(block_.data); }

 private:
  CachingAllocator& allocator_;
  CachingAllocator::Block block_;
};

/// Rows (product of all but the last dimension) and channels.
struct Matrix {
  Index rows = 0, channels = 0;
};
inline Matrix matrix_of(const Tensor& x, const char* operation) {
  require(x && x.shape().rank() >= 2 && x.shape().back() > 0, "cpu", "{}: x must have two or more dimensions", operation);
  return {x.elements() / x.shape().back(), x.shape().back()};
}

/// The sizes of a pooling or convolution from x[N,H,W,C] and y[N,P,Q,O]; checks that they belong together.
Geometry geometry(const Shape& x, const Shape& y, const Window2d& window, const char* operation);

}  // namespace cpu
}  // namespace starling
