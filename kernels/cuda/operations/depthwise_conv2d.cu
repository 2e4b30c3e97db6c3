#include <algorithm>
#include <utility>

#include "core/operations/convolutions.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/cuda/device/row_grid.h"
#include "kernels/cuda/operations/plain.h"
#include "kernels/cuda/runtime/launch.h"

// Depthwise 2-D convolutions (each channel has its own filter) of tensors in NHWC. They do a few
// multiply-adds per element and so are bound by memory. A thread computes a pack of kCount adjacent
// channels of a few adjacent output pixels in a row, and reads each input column once for all of
// them. Filters are first transposed from [channels, taps] to [taps, channels], so that they load
// as packs, too. A tap is one position of the filter: taps = kernel_h · kernel_w.
namespace starling::cuda {
namespace {

/// Output pixels of one thread. Four would not fit into the registers with stride 2.
template <int kStride>
constexpr int kTileWidth = kStride == 2 ? 2 : 4;
/// Limit on partial sums of the filters' gradient
constexpr Index kMaxParts = 64;

/// a / b in 32 bits; takes_depthwise() refuses tensors with more pixels.
struct Division {
  int quotient, remainder;
};
STARLING_HD Division divide_pixels(Index a, int b) {
  const int n = static_cast<int>(a), quotient = n / b;
  return {quotient, n - quotient * b};
}

/// Sizes of a convolution from [images, height, width, channels] to [images, out_height, out_width,
/// channels].
struct DepthwiseSizes {
  Index images;
  int height, width, out_height, out_width;
  int channels;
  int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
};

/// to[taps, C] = weight[C, taps]; `mirrored` reverses the order of taps.
template <class T>
__global__ void __launch_bounds__(kThreads)
    transpose_filters(const T* weight, Index channels, int taps, bool mirrored, T* to) {
  for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < channels * taps;
       i += Index{gridDim.x} * blockDim.x) {
    const Quotient at = divide(i, channels);
    const Index tap = mirrored ? taps - 1 - at.whole : at.whole;
    to[i] = weight[at.rest * taps + tap];
  }
}

/// y = x * filters (+ bias). A row of the grid is a tile of output pixels, an item a pack of
/// channels. kKernel and kStride are the filter's width and horizontal stride as compile-time
/// constants, for filters without dilation; 0, 0 handles all others.
template <class T, int kCount, int kKernel, int kStride>
__global__ void __launch_bounds__(kThreads, kKernel == 7 ? 1 : 2)
    convolve(const T* x, const T* filters, const Compute<T>* bias, DepthwiseSizes g, int tiles,
             T* y) {
  using C = Compute<T>;
  constexpr int kTile = kTileWidth<kStride>;
  for_items(g.images * g.out_height * tiles, g.channels / kCount, [&](Index row, Index pack) {
    const Division tile = divide_pixels(row, tiles);  // output row over all images, tile in it
    const Division line = divide_pixels(tile.quotient, g.out_height);  // image, output row in it
    const int first = tile.remainder * kTile, channel = static_cast<int>(pack) * kCount;
    C sum[kTile][kCount] = {};
    if (bias) {
#pragma unroll
      for (int j = 0; j < kTile; ++j) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) sum[j][i] = bias[channel + i];
      }
    }
    const int top = line.remainder * g.stride_h - g.pad_h;
    for (int kh = 0; kh < g.kernel_h; ++kh) {
      const int h = top + kh * g.dilation_h;
      if (h < 0 || h >= g.height) continue;
      const T* from = x + (Index{line.quotient} * g.height + h) * g.width * g.channels + channel;
      const T* taps = filters + Index{kh} * g.kernel_w * g.channels + channel;
      if constexpr (kKernel > 0) {
        C weight[kKernel][kCount];
#pragma unroll
        for (int kw = 0; kw < kKernel; ++kw) load_wide<kCount>(taps + kw * g.channels, weight[kw]);
        const int left = first * kStride - g.pad_w;
#pragma unroll
        for (int column = 0; column < (kTile - 1) * kStride + kKernel; ++column) {
          const int w = left + column;
          C value[kCount] = {};
          if (w >= 0 && w < g.width) load_wide<kCount>(from + Index{w} * g.channels, value);
#pragma unroll
          for (int j = 0; j < kTile; ++j) {
            const int kw = column - j * kStride;
            if (kw < 0 || kw >= kKernel) continue;
#pragma unroll
            for (int i = 0; i < kCount; ++i) sum[j][i] += weight[kw][i] * value[i];
          }
        }
      } else {
        for (int kw = 0; kw < g.kernel_w; ++kw) {
          C weight[kCount];
          load_wide<kCount>(taps + kw * g.channels, weight);
#pragma unroll
          for (int j = 0; j < kTile; ++j) {
            const int w = (first + j) * g.stride_w - g.pad_w + kw * g.dilation_w;
            C value[kCount] = {};
            if (w >= 0 && w < g.width) load_wide<kCount>(from + Index{w} * g.channels, value);
#pragma unroll
            for (int i = 0; i < kCount; ++i) sum[j][i] += weight[i] * value[i];
          }
        }
      }
    }
    T* to = y + (Index{tile.quotient} * g.out_width + first) * g.channels + channel;
#pragma unroll
    for (int j = 0; j < kTile; ++j) {
      if (first + j < g.out_width) store_narrow<kCount>(sum[j], to + j * g.channels);
    }
  });
}

/// dx of a convolution with strides. A row of the grid is a pixel of dx, which sums over the output
/// pixels whose windows contain it.
template <class T, int kCount>
__global__ void __launch_bounds__(kThreads, 4)
    backward_data_strided(const T* dy, const T* filters, DepthwiseSizes g, T* dx) {
  using C = Compute<T>;
  for_items(g.images * g.height * g.width, g.channels / kCount, [&](Index row, Index pack) {
    const Division pixel = divide_pixels(row, g.width);             // row over all images, column
    const Division line = divide_pixels(pixel.quotient, g.height);  // image, row in it
    const int channel = static_cast<int>(pack) * kCount;
    C sum[kCount] = {};
    for (int kh = 0; kh < g.kernel_h; ++kh) {
      const int h = line.remainder + g.pad_h - kh * g.dilation_h, p = h / g.stride_h;
      if (h < 0 || h % g.stride_h != 0 || p >= g.out_height) continue;
      for (int kw = 0; kw < g.kernel_w; ++kw) {
        const int w = pixel.remainder + g.pad_w - kw * g.dilation_w, q = w / g.stride_w;
        if (w < 0 || w % g.stride_w != 0 || q >= g.out_width) continue;
        C weight[kCount], value[kCount];
        load_wide<kCount>(filters + Index{kh * g.kernel_w + kw} * g.channels + channel, weight);
        load_wide<kCount>(
            dy + ((Index{line.quotient} * g.out_height + p) * g.out_width + q) * g.channels +
                channel,
            value);
#pragma unroll
        for (int i = 0; i < kCount; ++i) sum[i] += weight[i] * value[i];
      }
    }
    store_narrow<kCount>(sum, dx + row * g.channels + channel);
  });
}

/// The gradient of the filters, summed over a part of dy's rows: partial[part, tap, channel]. A
/// thread sums kTaps adjacent taps of one filter row for one pack of channels, over every
/// blockDim.y-th row of the part; the block then adds up its threads' sums. blockIdx is {packs /
/// blockDim.x, part, filter row · groups + group of taps}.
template <class T, int kCount, int kTaps>
__global__ void __launch_bounds__(kThreads)
    backward_weights_part(const T* x, const T* dy, DepthwiseSizes g, int groups,
                          Index rows_per_part, double* partial) {
  using C = Compute<T>;
  __shared__ C shared[kThreads * kCount];
  const int kh = static_cast<int>(blockIdx.z) / groups,
            first_tap = static_cast<int>(blockIdx.z) % groups * kTaps;
  const Index pack = Index{blockIdx.x} * blockDim.x + threadIdx.x, channel = pack * kCount;
  const bool inside = channel < g.channels;
  const Index first = Index{blockIdx.y} * rows_per_part,
              last = min(first + rows_per_part, g.images * g.out_height);
  C sum[kTaps][kCount] = {};
  if (inside) {
    for (Index row = first + threadIdx.y; row < last; row += blockDim.y) {
      const Division line = divide_pixels(row, g.out_height);  // image, output row in it
      const int h = line.remainder * g.stride_h - g.pad_h + kh * g.dilation_h;
      if (h < 0 || h >= g.height) continue;
      const T* from = x + (Index{line.quotient} * g.height + h) * g.width * g.channels + channel;
      const T* gradients = dy + row * g.out_width * g.channels + channel;
      for (int q = 0; q < g.out_width; ++q) {
        C gradient[kCount];
        load_wide<kCount>(gradients + Index{q} * g.channels, gradient);
        const int left = q * g.stride_w - g.pad_w + first_tap * g.dilation_w;
#pragma unroll
        for (int t = 0; t < kTaps; ++t) {
          const int w = left + t * g.dilation_w;
          if (w < 0 || w >= g.width) continue;
          C value[kCount];
          load_wide<kCount>(from + Index{w} * g.channels, value);
#pragma unroll
          for (int i = 0; i < kCount; ++i) sum[t][i] += gradient[i] * value[i];
        }
      }
    }
  }
  const unsigned width = blockDim.x * kCount, thread = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
  for (int t = 0; t < kTaps; ++t) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kCount; ++i) shared[thread * kCount + static_cast<unsigned>(i)] = sum[t][i];
    __syncthreads();
    for (unsigned column = thread; column < width; column += kThreads) {
      const Index to_channel = Index{blockIdx.x} * width + column;
      if (to_channel >= g.channels || first_tap + t >= g.kernel_w) continue;
      double total = 0.0;
      for (unsigned k = 0; k < blockDim.y; ++k)
        total += static_cast<double>(shared[k * width + column]);
      partial[(Index{blockIdx.y} * g.kernel_h * g.kernel_w + kh * g.kernel_w + first_tap + t) *
                  g.channels +
              to_channel] = total;
    }
  }
}

/// dweight[C, taps] (+)= Σ over the parts, in ascending order.
template <class C>
__global__ void __launch_bounds__(kThreads)
    add_partial_sums(const double* partial, int parts, Index channels, int taps, C* dweight,
                     bool accumulate) {
  const Index n = channels * taps;
  for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += Index{gridDim.x} * blockDim.x) {
    const Quotient at = divide(i, channels);
    C* to = dweight + at.rest * taps + at.whole;
    double total = accumulate ? static_cast<double>(*to) : 0.0;
    for (int part = 0; part < parts; ++part) total += partial[part * n + i];
    *to = static_cast<C>(total);
  }
}

DepthwiseSizes depthwise_sizes(const Tensor& x, const Tensor& y, const Window2d& w) {
  const Shape &in = x.shape(), &out = y.shape();
  const auto narrow = [](Index value) { return static_cast<int>(value); };
  return {in[0],
          narrow(in[1]),
          narrow(in[2]),
          narrow(out[1]),
          narrow(out[2]),
          narrow(in[3]),
          narrow(w.kernel[0]),
          narrow(w.kernel[1]),
          narrow(w.stride[0]),
          narrow(w.stride[1]),
          narrow(w.padding[0]),
          narrow(w.padding[1]),
          narrow(w.dilation[0]),
          narrow(w.dilation[1])};
}

template <class T>
Tensor transposed_filters(CudaBackend& backend, const Tensor& weight, const DepthwiseSizes& g,
                          bool mirrored) {
  const int taps = g.kernel_h * g.kernel_w;
  const Index n = Index{g.channels} * taps;
  Tensor result = backend.scratch(n, weight.dtype());
  launch(transpose_filters<T>, {{blocks_for(n, kThreads)}, {kThreads}, backend.handle()},
         weight.data<T>(), Index{g.channels}, taps, mirrored, result.data<T>());
  return result;
}

template <class T>
void launch_convolve(CudaBackend& backend, const T* x, const T* filters, const Compute<T>* bias,
                     const DepthwiseSizes& g, T* y) {
  const auto run = [&]<int kCount>() {
    const auto start = [&](auto kernel, int tile) {
      const int tiles = (g.out_width + tile - 1) / tile;
      launch(kernel,
             over_rows(g.images * g.out_height * tiles, g.channels / kCount, backend.handle()), x,
             filters, bias, g, tiles, y);
    };
    const bool dense = g.dilation_w == 1;
    if (dense && g.kernel_w == 3 && g.stride_w == 1)
      return start(convolve<T, kCount, 3, 1>, kTileWidth<1>);
    if (dense && g.kernel_w == 3 && g.stride_w == 2)
      return start(convolve<T, kCount, 3, 2>, kTileWidth<2>);
    if (dense && g.kernel_w == 7 && g.stride_w == 1)
      return start(convolve<T, kCount, 7, 1>, kTileWidth<1>);
    start(convolve<T, kCount, 0, 0>, kTileWidth<0>);
  };
  with_packs<T>(g.channels, run, x, filters, y);
}

}  // namespace

bool takes_depthwise(const Tensor& x, const Tensor& y, const Window2d& window) {
  // Positions in a row, in a window and among all pixels are computed in 32 bits.
  constexpr Index kMaxSize = Index{1} << 20, kMaxPixels = Index{1} << 30;
  if (!x || !y || x.shape().rank() != 4 || y.shape().rank() != 4) return false;
  const Index channels = x.shape()[3];
  bool small = channels > 1 && channels < kMaxSize && window.kernel[0] * window.kernel[1] <= 1024;
  for (std::size_t i = 0; i < 2; ++i) {
    const int axis = 1 + static_cast<int>(i);
    small = small && x.shape()[axis] < kMaxSize && y.shape()[axis] < kMaxSize &&
            window.stride[i] > 0 && window.stride[i] <= 1024 && window.dilation[i] > 0 &&
            window.dilation[i] <= 1024 && window.padding[i] >= 0 && window.padding[i] < kMaxSize;
  }
  small = small && x.elements() / channels < kMaxPixels && y.elements() / channels < kMaxPixels;
  return small && window.groups == channels && y.shape()[3] == channels;
}

void depthwise_conv2d_forward(CudaBackend& backend, const Conv2dForward& args) {
  const DepthwiseSizes g = depthwise_sizes(args.x, args.y, args.window);
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    const Tensor filters = transposed_filters<T>(backend, args.weight, g, false);
    const auto* bias = optional<Compute<T>>(args.bias);
    launch_convolve<T>(backend, args.x.data<T>(), filters.data<T>(), bias, g, args.y.data<T>());
  });
}

void depthwise_conv2d_backward_data(CudaBackend& backend, const Conv2dBackwardData& args) {
  const DepthwiseSizes g = depthwise_sizes(args.dx, args.dy, args.window);
  // Without strides dx is a convolution of dy with the filters mirrored.
  const bool unstrided = g.stride_h == 1 && g.stride_w == 1;
  floating(args.dy, [&](auto type) {
    using T = decltype(type);
    const Tensor filters = transposed_filters<T>(backend, args.weight, g, unstrided);
    const T* dy = args.dy.data<T>();
    T* dx = args.dx.data<T>();
    if (unstrided) {
      DepthwiseSizes back = g;
      std::swap(back.height, back.out_height);
      std::swap(back.width, back.out_width);
      back.pad_h = (g.kernel_h - 1) * g.dilation_h - g.pad_h;
      back.pad_w = (g.kernel_w - 1) * g.dilation_w - g.pad_w;
      return launch_convolve<T>(backend, dy, filters.data<T>(), nullptr, back, dx);
    }
    const T* filter_data = filters.data<T>();
    const auto run = [&]<int kCount>() {
      launch(backward_data_strided<T, kCount>,
             over_rows(g.images * g.height * g.width, g.channels / kCount, backend.handle()), dy,
             filter_data, g, dx);
    };
    with_packs<T>(g.channels, run, dy, filter_data, dx);
  });
}

void depthwise_conv2d_backward_weights(CudaBackend& backend, const Conv2dBackwardWeights& args) {
  const DepthwiseSizes g = depthwise_sizes(args.x, args.dy, args.window);
  const int taps = g.kernel_h * g.kernel_w;
  const Index n = Index{g.channels} * taps, rows = g.images * g.out_height;
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    C* dweight = args.dweight.data<C>();
    const T* x = args.x.data<T>();
    const T* dy = args.dy.data<T>();
    const auto run = [&]<int kCount>() {
      const Index packs = g.channels / kCount;
      unsigned width = 1;
      while (width < 32 && static_cast<Index>(width) < packs) width *= 2;
      const unsigned lines = kThreads / width;
      // At least 4 rows for each thread, which limits the number of partial sums.
      const Index rows_per_part =
          Index{lines} * std::max<Index>(4, (rows + lines * kMaxParts - 1) / (lines * kMaxParts));
      const auto parts =
          static_cast<unsigned>(std::max<Index>(1, (rows + rows_per_part - 1) / rows_per_part));
      const Tensor partial = backend.scratch(parts * n, DType::kFloat64);
      const auto start = [&](auto kernel, int taps_per_thread) {
        const int groups = (g.kernel_w + taps_per_thread - 1) / taps_per_thread;
        launch(kernel,
               {{blocks_for(packs, static_cast<int>(width)), parts,
                 static_cast<unsigned>(g.kernel_h * groups)},
                {width, lines},
                backend.handle()},
               x, dy, g, groups, rows_per_part, partial.data<double>());
      };
      if (g.kernel_w == 7) {
        start(backward_weights_part<T, kCount, 7>, 7);
      } else {
        start(backward_weights_part<T, kCount, 3>, 3);
      }
      launch(add_partial_sums<C>, {{blocks_for(n, kThreads)}, {kThreads}, backend.handle()},
             partial.data<double>(), static_cast<int>(parts), Index{g.channels}, taps, dweight,
             args.accumulate);
    };
    with_packs<T>(g.channels, run, x, dy);
  });
}

}  // namespace starling::cuda
