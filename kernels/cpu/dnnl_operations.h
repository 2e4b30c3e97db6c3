#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cpu/allocator.h"
#include "kernels/cpu/kernels.h"

namespace starling::cpu {

/// Convolutions and matrix products in fp32 and bf16 by oneDNN. Primitives are made once per shape
/// and kept. Activations stay in plain NHWC; weights go through oneDNN's own format (they are
/// small), in memory from the caching allocator, as are the library's scratchpads. Errors of the
/// library become Error(kInternal) with operation and shape; want of memory Error(kMemory).
class DnnlOperations {
 public:
  explicit DnnlOperations(CachingAllocator& allocator);
  ~DnnlOperations();

  // T: float or BFloat16.
  template <class T>
  void conv_forward(const Geometry& g, const T* x, const T* weight, const float* bias, T* y);
  template <class T>
  void conv_backward_data(const Geometry& g, const T* dy, const T* weight, T* dx);
  template <class T>
  void conv_backward_weights(const Geometry& g, const T* x, const T* dy, float* dweight,
                             bool accumulate);
  /// c[m,n] (+)= op(a)·op(b).
  void matmul(const Product& p, const float* a, const float* b, float* c);
  /// The product of bf16 numbers into float or BFloat16, + bias[n] (optional).
  template <class To>
  void matmul(const Product& p, const BFloat16* a, const BFloat16* b, const float* bias, To* c);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace starling::cpu
