#pragma once

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/workspace.h"

namespace starling::cpu {

/// Whether each output channel reads one channel, its own, by a window of not too many pixels.
inline bool takes_depthwise(const Geometry& g) {
  return g.groups == g.channels && g.out_channels == g.channels && g.channels > 1 &&
         g.kernel_h * g.kernel_w <= kDepthwiseTaps;
}

/// Convolutions of every channel alone by own kernels, with the same bits on any number of threads:
/// in fp64, and in fp32 the gradient of the filters. For fp32's other two passes oneDNN is faster.
template <class T>
class Depthwise {
 public:
  Depthwise(const Kernels<T>& kernels, const Threads& threads, CachingAllocator& allocator)
      : kernels_(kernels), threads_(threads), allocator_(allocator) {}

  void forward(const Geometry& g, const T* x, const T* weight, const T* bias, T* y) const;
  void backward_data(const Geometry& g, const T* dy, const T* weight, T* dx) const;
  void backward_weights(const Geometry& g, const T* x, const T* dy, T* dweight,
                        bool accumulate) const;

 private:
  Workspace<T> packed(const Geometry& g, const T* weight) const;
  /// Calls run(image, first row, last row, channel, scratch) for all of the output.
  template <class F>
  void each_part(const Geometry& g, Index rows, F&& run) const;

  const Kernels<T>& kernels_;
  const Threads& threads_;
  CachingAllocator& allocator_;
};

}  // namespace starling::cpu
