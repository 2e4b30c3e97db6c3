#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cpu/allocator.h"
#include "kernels/cpu/kernels.h"

namespace starling::cpu {

/// Convolutions and matrix products in fp32 by oneDNN. Primitives are made once per shape and kept. Activations stay in plain NHWC; weights
/// go through oneDNN's own format (they are small), in memory from the caching allocator, as are the library's scratchpads.
/// Errors of the library become Error(kInternal) with operation and shape; want of memory Error(kMemory).
class DnnlOperations {
 public:
  explicit DnnlOperations(CachingAllocator& allocator);
  ~DnnlOperations();

  void conv_forward(const Geometry& g, const float* x, const float* weight, const float* bias, float* y);
  void conv_backward_data(const Geometry& g, const float* dy, const float* weight, float* dx);
  void conv_backward_weights(const Geometry& g, const float* x, const float* dy, float* dweight, bool accumulate);
  /// c[m,n] (+)= op(a)·op(b).
  void matmul(const float* a, const float* b, float* c, Index m, Index n, Index k, bool transpose_a, bool transpose_b, bool accumulate);

  /// "oneDNN 2.6.3".
  static std::string library();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace starling::cpu
