#include <algorithm>

#include "kernels/cpu/depthwise.h"

namespace starling::cpu {

namespace {

/// Rows that are done in one go: the rows that a window spans are copied again for the next ones.
constexpr Index kPartRows = 32;
/// Parts that the images' gradients of the filters gather in, whatever the number of threads.
constexpr Index kPartsOfBatch = 16;

Index blocks_of(const Geometry& g) { return (g.channels + kDepthwiseBlock - 1) / kDepthwiseBlock; }

/// A thread's lines, for any of the three passes.
Index scratch_elements(const Geometry& g) {
  const Index reach = (g.kernel_w - 1) * g.dilation_w;
  const Index read = (g.out_width - 1) * g.stride_w + reach + 1;
  const Index back = reach + (g.width - 1 + g.pad_w) / g.stride_w + 2;
  return (depthwise_rows(g) * std::max(read, back) + g.out_width) * kDepthwiseBlock;
}

}  // namespace

template <class T>
Workspace<T> Depthwise<T>::packed(const Geometry& g, const T* weight) const {
  Workspace<T> result(allocator_, blocks_of(g) * g.kernel_h * g.kernel_w * kDepthwiseBlock);
  kernels_.depthwise_pack(g, weight, result.data());
  return result;
}

template <class T>
template <class F>
void Depthwise<T>::each_part(const Geometry& g, Index rows, F&& run) const {
  const Index blocks = blocks_of(g), pieces = (rows + kPartRows - 1) / kPartRows,
              scratch = scratch_elements(g);
  const Workspace<T> lines(allocator_, threads_.count() * scratch);
  threads_.parallel_blocks(g.images * pieces * blocks, 1, [&](Index part, Index at, Index) {
    const Index first = at / blocks % pieces * kPartRows;
    run(at / (blocks * pieces), first, std::min(rows, first + kPartRows),
        at % blocks * kDepthwiseBlock, lines.data() + part * scratch);
  });
}

template <class T>
void Depthwise<T>::forward(const Geometry& g, const T* x, const T* weight, const T* bias,
                           T* y) const {
  const Workspace<T> filters = packed(g, weight);
  each_part(g, g.out_height, [&](Index image, Index first, Index last, Index channel, T* scratch) {
    kernels_.depthwise_forward(g, x, filters.data(), bias, y, image, first, last, channel, scratch);
  });
}

template <class T>
void Depthwise<T>::backward_data(const Geometry& g, const T* dy, const T* weight, T* dx) const {
  const Workspace<T> filters = packed(g, weight);
  each_part(g, g.height, [&](Index image, Index first, Index last, Index channel, T* scratch) {
    kernels_.depthwise_backward_data(g, dy, filters.data(), dx, image, first, last, channel,
                                     scratch);
  });
}

template <class T>
void Depthwise<T>::backward_weights(const Geometry& g, const T* x, const T* dy, T* dweight,
                                    bool accumulate) const {
  const Index blocks = blocks_of(g), taps = g.kernel_h * g.kernel_w, scratch = scratch_elements(g),
              block = taps * kDepthwiseBlock;
  const Index images = (g.images + kPartsOfBatch - 1) / kPartsOfBatch,
              parts = (g.images + images - 1) / images;
  const Workspace<T> lines(allocator_, threads_.count() * scratch),
      sums(allocator_, parts * blocks * block);
  threads_.parallel_blocks(parts * blocks, 1, [&](Index thread, Index at, Index) {
    const Index first = at / blocks * images;
    kernels_.depthwise_backward_weights(
        g, x, dy, sums.data() + at * block, first, std::min(g.images, first + images),
        at % blocks * kDepthwiseBlock, lines.data() + thread * scratch);
  });
  // Added up in the order of the images: no bit depends on the number of threads.
  for (Index c = 0; c < g.channels; ++c) {
    for (Index t = 0; t < taps; ++t) {
      double total = accumulate ? static_cast<double>(dweight[c * taps + t]) : 0.0;
      const T* from =
          sums.data() + (c / kDepthwiseBlock) * block + t * kDepthwiseBlock + c % kDepthwiseBlock;
      for (Index part = 0; part < parts; ++part)
        total += static_cast<double>(from[part * blocks * block]);
      dweight[c * taps + t] = static_cast<T>(total);
    }
  }
}

template class Depthwise<double>;
template void Depthwise<float>::backward_weights(const Geometry&, const float*, const float*,
                                                 float*, bool) const;

}  // namespace starling::cpu
