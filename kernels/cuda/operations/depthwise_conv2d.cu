#include <algorithm>
#include <utility>

#include "core/operations/convolutions.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/cuda/device/row_grid.h"
#include "kernels/cuda/operations/plain.h"
#include "kernels/cuda/runtime/launch.h"

// Convolutions of every channel alone: a few multiply-adds for each number, so that memory is what
// they wait for. A thread takes a pack of channels at a few neighbouring pixels of a row, and reads
// each column of a window's row once for all of them. Filters are turned round first, to taps ×
// channels, so that their numbers come in packs too.
namespace starling::cuda {
namespace {

/// Outputs of a thread, by the step between them: with steps of 2 four would not fit the registers.
template <int kStride>
constexpr int kTileOf = kStride == 2 ? 2 : 4;
/// Most parts of the rows, whose sums for the filters are added up at the end
constexpr Index kMostParts = 64;

/// a divided by b; takes_depthwise() sees to it that numbers of pixels fit.
struct Pixels {
  int whole, rest;
};
STARLING_HD Pixels split(Index a, int b) {
  const int n = static_cast<int>(a), whole = n / b;
  return {whole, n - whole * b};
}

/// Sizes of a pass: of what is read and of what is written.
struct Window {
  Index images;
  int height, width, out_height, out_width;  ///< of what is read, of what is written
  int channels;
  int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
};

/// to[taps, C] = weight[C, taps], the taps in reverse order for `mirrored`.
template <class T>
__global__ void __launch_bounds__(kThreads)
    turn_filters(const T* weight, Index channels, int taps, bool mirrored, T* to) {
  for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < channels * taps;
       i += Index{gridDim.x} * blockDim.x) {
    const Quotient at = divide(i, channels);
    const Index tap = mirrored ? taps - 1 - at.whole : at.whole;
    to[i] = weight[at.rest * taps + tap];
  }
}

/// y = x * filters (+ bias): rows are tiles of output pixels, items packs of channels. kKernel and
/// kStride: the window's width and step where the compiler is to know them, without dilation; 0:
/// any.
template <class T, int kCount, int kKernel, int kStride>
__global__ void __launch_bounds__(kThreads, kKernel == 7 ? 1 : 2)
    convolve(const T* x, const T* filters, const Compute<T>* bias, Window g, int tiles, T* y) {
  using C = Compute<T>;
  constexpr int kTile = kTileOf<kStride>;
  for_items(g.images * g.out_height * tiles, g.channels / kCount, [&](Index row, Index pack) {
    const Pixels line = split(row, tiles), image = split(line.whole, g.out_height);
    const int first = line.rest * kTile, channel = static_cast<int>(pack) * kCount;
    C sum[kTile][kCount] = {};
    if (bias) {
#pragma unroll
      for (int j = 0; j < kTile; ++j) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) sum[j][i] = bias[channel + i];
      }
    }
    const int top = image.rest * g.stride_h - g.pad_h;
    for (int kh = 0; kh < g.kernel_h; ++kh) {
      const int h = top + kh * g.dilation_h;
      if (h < 0 || h >= g.height) continue;
      const T* from = x + (Index{image.whole} * g.height + h) * g.width * g.channels + channel;
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
    T* to = y + (Index{line.whole} * g.out_width + first) * g.channels + channel;
#pragma unroll
    for (int j = 0; j < kTile; ++j) {
      if (first + j < g.out_width) store_narrow<kCount>(sum[j], to + j * g.channels);
    }
  });
}

/// dx of a convolution with strides: g's `height` and `width` are dx's, `out_height` and
/// `out_width` those of dy. Rows are pixels of dx.
template <class T, int kCount>
__global__ void __launch_bounds__(kThreads, 4)
    spread(const T* dy, const T* filters, Window g, T* dx) {
  using C = Compute<T>;
  for_items(g.images * g.height * g.width, g.channels / kCount, [&](Index row, Index pack) {
    const Pixels line = split(row, g.width), image = split(line.whole, g.height);
    const int channel = static_cast<int>(pack) * kCount;
    C sum[kCount] = {};
    for (int kh = 0; kh < g.kernel_h; ++kh) {
      const int h = image.rest + g.pad_h - kh * g.dilation_h, p = h / g.stride_h;
      if (h < 0 || h % g.stride_h != 0 || p >= g.out_height) continue;
      for (int kw = 0; kw < g.kernel_w; ++kw) {
        const int w = line.rest + g.pad_w - kw * g.dilation_w, q = w / g.stride_w;
        if (w < 0 || w % g.stride_w != 0 || q >= g.out_width) continue;
        C weight[kCount], value[kCount];
        load_wide<kCount>(filters + Index{kh * g.kernel_w + kw} * g.channels + channel, weight);
        load_wide<kCount>(
            dy + ((Index{image.whole} * g.out_height + p) * g.out_width + q) * g.channels + channel,
            value);
#pragma unroll
        for (int i = 0; i < kCount; ++i) sum[i] += weight[i] * value[i];
      }
    }
    store_narrow<kCount>(sum, dx + row * g.channels + channel);
  });
}

/// partial[part, tap, channel] of kTaps taps of a row of the filter, from kw on, over the part's
/// rows of dy. A block has blockDim.x packs of channels by blockDim.y rows at a time; blockIdx:
/// packs, parts, rows of the filter times groups of taps.
template <class T, int kCount, int kTaps>
__global__ void __launch_bounds__(kThreads)
    gather_filters(const T* x, const T* dy, Window g, int groups, Index rows_per_part,
                   double* partial) {
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
      const Pixels image = split(row, g.out_height);
      const int h = image.rest * g.stride_h - g.pad_h + kh * g.dilation_h;
      if (h < 0 || h >= g.height) continue;
      const T* from = x + (Index{image.whole} * g.height + h) * g.width * g.channels + channel;
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
      const Index own = Index{blockIdx.x} * width + column;
      if (own >= g.channels || first_tap + t >= g.kernel_w) continue;
      double total = 0.0;
      for (unsigned k = 0; k < blockDim.y; ++k)
        total += static_cast<double>(shared[k * width + column]);
      partial[(Index{blockIdx.y} * g.kernel_h * g.kernel_w + kh * g.kernel_w + first_tap + t) *
                  g.channels +
              own] = total;
    }
  }
}

/// dweight[C, taps] (+)= Σ over the parts, in their order.
template <class C>
__global__ void __launch_bounds__(kThreads)
    add_parts(const double* partial, int parts, Index channels, int taps, C* dweight,
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

/// The sizes of a convolution from x to y.
Window window_of(const Tensor& x, const Tensor& y, const Window2d& w) {
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
Tensor turned(CudaBackend& backend, const Tensor& weight, const Window& g, bool mirrored) {
  const int taps = g.kernel_h * g.kernel_w;
  const Index n = Index{g.channels} * taps;
  Tensor result = backend.scratch(n, weight.dtype());
  launch(turn_filters<T>, {{blocks_for(n, kThreads)}, {kThreads}, backend.handle()},
         weight.data<T>(), Index{g.channels}, taps, mirrored, result.data<T>());
  return result;
}

template <class T>
void convolve_all(CudaBackend& backend, const T* x, const T* filters, const Compute<T>* bias,
                  const Window& g, T* y) {
  const auto run = [&]<int kCount>() {
    const auto with = [&](auto kernel, int tile) {
      const int tiles = (g.out_width + tile - 1) / tile;
      launch(kernel,
             over_rows(g.images * g.out_height * tiles, g.channels / kCount, backend.handle()), x,
             filters, bias, g, tiles, y);
    };
    const bool dense = g.dilation_w == 1;
    if (dense && g.kernel_w == 3 && g.stride_w == 1)
      return with(convolve<T, kCount, 3, 1>, kTileOf<1>);
    if (dense && g.kernel_w == 3 && g.stride_w == 2)
      return with(convolve<T, kCount, 3, 2>, kTileOf<2>);
    if (dense && g.kernel_w == 7 && g.stride_w == 1)
      return with(convolve<T, kCount, 7, 1>, kTileOf<1>);
    with(convolve<T, kCount, 0, 0>, kTileOf<0>);
  };
  with_packs<T>(g.channels, run, x, filters, y);
}

}  // namespace

bool takes_depthwise(const Tensor& x, const Tensor& y, const Window2d& window) {
  constexpr Index kMost = Index{1} << 20;  // places in a row and a window are computed in 32 bits
  if (!x || !y || x.shape().rank() != 4 || y.shape().rank() != 4) return false;
  const Index channels = x.shape()[3];
  bool small = channels > 1 && channels < kMost && window.kernel[0] * window.kernel[1] <= 1024;
  for (std::size_t i = 0; i < 2; ++i) {
    const int axis = 1 + static_cast<int>(i);
    small = small && x.shape()[axis] < kMost && y.shape()[axis] < kMost && window.stride[i] > 0 &&
            window.stride[i] <= 1024 && window.dilation[i] > 0 && window.dilation[i] <= 1024 &&
            window.padding[i] >= 0 && window.padding[i] < kMost;
  }
  constexpr Index kMostPixels = Index{1} << 30;
  small = small && x.elements() / channels < kMostPixels && y.elements() / channels < kMostPixels;
  return small && window.groups == channels && y.shape()[3] == channels;
}

void depthwise_conv2d_forward(CudaBackend& backend, const Conv2dForward& args) {
  const Window g = window_of(args.x, args.y, args.window);
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    const Tensor filters = turned<T>(backend, args.weight, g, false);
    const auto* bias = optional<Compute<T>>(args.bias);
    convolve_all<T>(backend, args.x.data<T>(), filters.data<T>(), bias, g, args.y.data<T>());
  });
}

void depthwise_conv2d_backward_data(CudaBackend& backend, const Conv2dBackwardData& args) {
  const Window g = window_of(args.dx, args.dy, args.window);
  // The gradient without strides is a convolution with the filters turned round.
  const bool plain = g.stride_h == 1 && g.stride_w == 1;
  floating(args.dy, [&](auto type) {
    using T = decltype(type);
    const Tensor filters = turned<T>(backend, args.weight, g, plain);
    const T* dy = args.dy.data<T>();
    T* dx = args.dx.data<T>();
    if (plain) {
      Window back = g;
      std::swap(back.height, back.out_height);
      std::swap(back.width, back.out_width);
      back.pad_h = (g.kernel_h - 1) * g.dilation_h - g.pad_h;
      back.pad_w = (g.kernel_w - 1) * g.dilation_w - g.pad_w;
      return convolve_all<T>(backend, dy, filters.data<T>(), nullptr, back, dx);
    }
    const T* turned_filters = filters.data<T>();
    const auto run = [&]<int kCount>() {
      launch(spread<T, kCount>,
             over_rows(g.images * g.height * g.width, g.channels / kCount, backend.handle()), dy,
             turned_filters, g, dx);
    };
    with_packs<T>(g.channels, run, dy, turned_filters, dx);
  });
}

void depthwise_conv2d_backward_weights(CudaBackend& backend, const Conv2dBackwardWeights& args) {
  const Window g = window_of(args.x, args.dy, args.window);
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
      // A thread has 4 rows or more, which bounds the parts and what is left to add up.
      const Index rows_per_part =
          Index{lines} * std::max<Index>(4, (rows + lines * kMostParts - 1) / (lines * kMostParts));
      const auto parts =
          static_cast<unsigned>(std::max<Index>(1, (rows + rows_per_part - 1) / rows_per_part));
      const Tensor partial = backend.scratch(parts * n, DType::kFloat64);
      const auto with = [&](auto kernel, int together) {
        const int groups = (g.kernel_w + together - 1) / together;
        launch(kernel,
               {{blocks_for(packs, static_cast<int>(width)), parts,
                 static_cast<unsigned>(g.kernel_h * groups)},
                {width, lines},
                backend.handle()},
               x, dy, g, groups, rows_per_part, partial.data<double>());
      };
      if (g.kernel_w == 7) {
        with(gather_filters<T, kCount, 7>, 7);
      } else {
        with(gather_filters<T, kCount, 3>, 3);
      }
      launch(add_parts<C>, {{blocks_for(n, kThreads)}, {kThreads}, backend.handle()},
             partial.data<double>(), static_cast<int>(parts), Index{g.channels}, taps, dweight,
             args.accumulate);
    };
    with_packs<T>(g.channels, run, x, dy);
  });
}

}  // namespace starling::cuda
