#pragma once

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/workspace.h"

namespace starling::cpu {

/// Whether minimal filtering is faster than oneDNN for the shape: 3×3, stride 1, padding 1,
/// channels by the sixteen, tiles that do not lie outside the images for the most part, and enough
/// of them to make up for the filters' transform. Measured on an AMD with AVX2, one thread: 1.7 to
/// 4 times as fast forward, 1.5 to 3.3 for the data, 1.7 to 4.8 for the filters, least with 16
/// channels.
bool suits_winograd(const Geometry& g);

/// The three passes of 3×3 convolutions by minimal filtering, in fp32, with the same bits on any
/// number of threads. Rounding is some 1.2 to 2 times that of a sum over all taps: 8e-7 against
/// 4e-7 forward (root mean square, relative, 64 channels), 1.9e-6 against 1.1e-6 with 512. Working
/// memory: the filters of 128 outputs at the points (36 · 128 · channels numbers), and for each
/// thread 48 tiles there.
class Winograd {
 public:
  /// Kernels that have them.
  Winograd(const Kernels<float>& kernels, const Threads& threads, CachingAllocator& allocator)
      : kernels_(kernels.winograd), threads_(threads), allocator_(allocator) {}

  /// bias: optional
  void forward(const Geometry& g, const float* x, const float* weight, const float* bias,
               float* y) const {
    convolve(g, false, x, weight, bias, y);
  }
  void backward_data(const Geometry& g, const float* dy, const float* weight, float* dx) const {
    convolve(g, true, dy, weight, nullptr, dx);
  }
  void backward_weights(const Geometry& g, const float* x, const float* dy, float* dweight,
                        bool accumulate) const;

 private:
  void convolve(const Geometry& g, bool backward, const float* x, const float* weight,
                const float* bias, float* y) const;

  const WinogradKernels& kernels_;
  const Threads& threads_;
  CachingAllocator& allocator_;
};

}  // namespace starling::cpu
