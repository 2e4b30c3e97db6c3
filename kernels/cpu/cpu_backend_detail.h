#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "core/dispatch.h"
#include "core/error.h"
#include "core/operations/convolutions.h"
#include "kernels/cpu/cpu_backend.h"

// What the files that implement CpuBackend share.
namespace starling {

namespace cpu {
/// Elements: less work than this is not worth another thread
constexpr Index kElementGrain = 16384;
/// The grain size in rows of this many elements.
constexpr Index rows_of_work(Index elements) {
  return std::max<Index>(1, kElementGrain / std::max<Index>(1, elements));
}
}  // namespace cpu

template <class F>
void CpuBackend::floating(const Tensor& x, F&& f) const {
  threads_.enter();
  dispatch_floating(x.dtype(), f);
}

template <class F>
void CpuBackend::by_line(cpu::Index n, cpu::Index lines, cpu::Index step, const F& f) {
  if (lines == 1 || step == n) {
    threads_.parallel_for(n * lines, cpu::kElementGrain,
                          [&](cpu::Index begin, cpu::Index end) { f(begin, begin, end - begin); });
  } else {
    const cpu::Index grain =
        std::max<cpu::Index>(1, cpu::kElementGrain / std::max<cpu::Index>(1, n));
    threads_.parallel_for(lines, grain, [&](cpu::Index begin, cpu::Index end) {
      for (cpu::Index i = begin; i < end; ++i) f(i * step, i * n, n);
    });
  }
}

template <class T>
cpu::Workspace<float> CpuBackend::widened(const T* x, cpu::Index n, cpu::Index lines,
                                          cpu::Index step) {
  cpu::Workspace<float> result(*allocator_, n * lines);
  by_line(n, lines, step, [&](cpu::Index from, cpu::Index to, cpu::Index count) {
    kernels<T>().widen(x + from, result.data() + to, count);
  });
  return result;
}

template <class T>
void CpuBackend::narrow(const float* x, T* y, cpu::Index n, cpu::Index lines, cpu::Index step) {
  by_line(n, lines, step, [&](cpu::Index to, cpu::Index from, cpu::Index count) {
    kernels<T>().narrow(x + from, y + to, count);
  });
}

namespace cpu {

/// The tensor's numbers, or null where it is empty.
template <class T>
T* optional(const Tensor& x) {
  return x ? x.data<T>() : nullptr;
}

/// Rows (product of all but the last dimension) and channels.
struct Matrix {
  Index rows = 0, channels = 0;
  Index elements() const { return rows * channels; }
  Index width() const { return fold_width(channels); }  ///< of the normalisation kernels' long rows
  Index block() const { return block_rows(channels); }  ///< of rows whose sums gather in one run
};
inline Matrix matrix_of(const Tensor& x) {
  return {x.elements() / x.shape().back(), x.shape().back()};
}

/// Repeats a per-channel vector until it covers the normalisation kernels' long rows.
template <class T>
void repeat(T* vector, Index channels) {
  const Index width = fold_width(channels);
  for (Index v = channels; v < width; ++v) vector[v] = vector[v - channels];
}

/// The sizes of a pooling or convolution from x[N,H,W,C] and y[N,P,Q,O].
Geometry geometry(const Shape& x, const Shape& y, const Window2d& window);

}  // namespace cpu
}  // namespace starling
