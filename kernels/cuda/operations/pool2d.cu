#include <limits>
#include <type_traits>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/cuda/device/row_grid.h"

// Pooling. Backward passes gather: each input pixel asks the windows that cover it, in the order of their outputs, so sums need no atomics
// and have one order. Rows are lines of an image, items a line's packs of channels.
namespace starling::cuda {
namespace {

struct Sizes {
  Index images, packs;  ///< packs of channels
  int height, width, out_height, out_width;
  int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
};

template <class T, int kCount, bool kMax>
__global__ void pool_forward(Sizes s, const T* x, T* y, std::int32_t* index, Compute<T> share) {
  using C = Compute<T>;
  for_items(s.images * s.out_height, s.out_width * s.packs, [&](Index row, Index item) {
    const Quotient line = divide(row, s.out_height), pixel = divide(item, s.packs);
    const int top = static_cast<int>(line.rest) * s.stride_h - s.pad_h, left = static_cast<int>(pixel.whole) * s.stride_w - s.pad_w;
    C result[kCount];
    std::int32_t where[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      result[i] = kMax ? -std::numeric_limits<C>::infinity() : C(0);
      where[i] = -1;
    }
    bool started = false;
    for (int kh = 0; kh < s.kernel_h; ++kh) {
      const int h = top + kh * s.dilation_h;
      if (h < 0 || h >= s.height) continue;
      for (int kw = 0; kw < s.kernel_w; ++kw) {
        const int w = left + kw * s.dilation_w;
        if (w < 0 || w >= s.width) continue;
        const std::int32_t here = h * s.width + w;
        C values[kCount];
        load_wide<kCount>(x + ((line.whole * s.height * s.width + here) * s.packs + pixel.rest) * kCount, values);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          if constexpr (kMax) {
            const bool better = !started || values[i] > result[i] || values[i] != values[i];  // NaN wins, so that divergence shows
            result[i] = better ? values[i] : result[i];
            where[i] = better ? here : where[i];
          } else {
            result[i] += values[i];
          }
        }
        started = true;
      }
    }
    if constexpr (!kMax) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) result[i] *= share;
    }
    const Index to = (row * s.out_width * s.packs + item) * kCount;
    store_narrow<kCount>(result, y + to);
    if (kMax && index != nullptr) store<kCount>(where, index + to);
  });
}

/// The outputs first … last along one axis whose windows may cover input `at`.
struct Covering {
  int first, last;
};
STARLING_HD Covering covering(int at, int kernel, int stride, int pad, int dilation, int outputs) {
  const int from = at + pad - (kernel - 1) * dilation;
  return {from <= 0 ? 0 : (from + stride - 1) / stride, min((at + pad) / stride, outputs - 1)};
}

template <class T, int kCount, bool kMax>
__global__ void pool_backward(Sizes s, const T* dy, const std::int32_t* index, T* dx, Compute<T> share) {
  using C = Compute<T>;
  for_items(s.images * s.height, s.width * s.packs, [&](Index row, Index item) {
    const Quotient line = divide(row, s.height), pixel = divide(item, s.packs);
    const int h = static_cast<int>(line.rest), w = static_cast<int>(pixel.whole);
    const std::int32_t here = h * s.width + w;
    const Covering down = covering(h, s.kernel_h, s.stride_h, s.pad_h, s.dilation_h, s.out_height);
    const Covering across = covering(w, s.kernel_w, s.stride_w, s.pad_w, s.dilation_w, s.out_width);
    C sum[kCount] = {};
    for (int p = down.first; p <= down.last; ++p) {
      if (s.dilation_h > 1 && (h + s.pad_h - p * s.stride_h) % s.dilation_h != 0) continue;
      for (int q = across.first; q <= across.last; ++q) {
        if (s.dilation_w > 1 && (w + s.pad_w - q * s.stride_w) % s.dilation_w != 0) continue;
        const Index from = (((line.whole * s.out_height + p) * s.out_width + q) * s.packs + pixel.rest) * kCount;
        C values[kCount];
        load_wide<kCount>(dy + from, values);
        if constexpr (kMax) {
          std::int32_t where[kCount];
          load<kCount>(index + from, where);
#pragma unroll
          for (int i = 0; i < kCount; ++i) sum[i] = where[i] == here ? sum[i] + values[i] : sum[i];
        } else {
#pragma unroll
          for (int i = 0; i < kCount; ++i) sum[i] += share * values[i];
        }
      }
    }
    store_narrow<kCount>(sum, dx + (row * s.width * s.packs + item) * kCount);
  });
}

constexpr int kAverageThreads = 256;

/// y[image][pack] = the mean over its pixels. A block takes some neighbouring packs of an image: blockDim.x threads for these, blockDim.y
/// that share the pixels.
template <class T, int kCount>
__global__ void __launch_bounds__(kAverageThreads)
    global_average(const T* x, T* y, Index images, Index pixels, Index packs, Compute<T> scale) {
  using C = Compute<T>;
  constexpr int kUnroll = 4;
  __shared__ C shared[kAverageThreads * kCount];
  const int width = static_cast<int>(blockDim.x), lanes = static_cast<int>(blockDim.y);
  const int thread = static_cast<int>(threadIdx.y) * width + static_cast<int>(threadIdx.x);
  const Index pack = Index{blockIdx.x} * width + threadIdx.x, line = packs * kCount;
  for (Index image = blockIdx.y; image < images; image += gridDim.y) {
    const T* from = x + (image * pixels * packs + pack) * kCount;
    C sum[kCount] = {};
    for (Index p = threadIdx.y; pack < packs && p < pixels; p += Index{kUnroll} * lanes) {
      C values[kUnroll][kCount] = {};
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) {
        if (p + Index{k} * lanes < pixels) load_wide<kCount>(from + (p + Index{k} * lanes) * line, values[k]);
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) sum[i] += (values[0][i] + values[1][i]) + (values[2][i] + values[3][i]);
    }
    __syncthreads();  // the last image's readers are done
#pragma unroll
    for (int i = 0; i < kCount; ++i) shared[i * kAverageThreads + thread] = sum[i];
    for (int half = lanes / 2; half > 0; half /= 2) {
      __syncthreads();
      if (static_cast<int>(threadIdx.y) >= half) continue;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        sum[i] += shared[i * kAverageThreads + thread + half * width];
        shared[i * kAverageThreads + thread] = sum[i];
      }
    }
    if (threadIdx.y != 0 || pack >= packs) continue;
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum[i] *= scale;
    store_narrow<kCount>(sum, y + (image * packs + pack) * kCount);
  }
}

/// Rows are pixels of all images.
template <class T, int kCount>
__global__ void global_spread(const T* dy, T* dx, Index images, Index pixels, Index packs, Compute<T> scale) {
  for_items(images * pixels, packs, [&](Index row, Index pack) {
    Compute<T> values[kCount];
    load_wide<kCount>(dy + (divide(row, pixels).whole * packs + pack) * kCount, values);
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] *= scale;
    store_narrow<kCount>(values, dx + (row * packs + pack) * kCount);
  });
}

/// The sizes of a pooling from x[N,H,W,C] and y[N,P,Q,C]; checks that they belong together.
Sizes sizes_of(const Tensor& image, const Tensor& result, const Window2d& s, const char* operation) {
  require(image && result && image.shape().rank() == 4 && result.shape().rank() == 4, "cuda", "{}: {} and {} must have four dimensions",
          operation, image.shape().text(), result.shape().text());
  const Shape x = image.shape(), y = result.shape();
  bool valid = s.groups > 0;
  for (std::size_t i = 0; i < 2; ++i) {
    valid = valid && s.kernel[i] > 0 && s.stride[i] > 0 && s.dilation[i] > 0;
    // All that a kernel computes with ints stays below 2^31.
    const Index reach = x[static_cast<int>(i) + 1] + 2 * s.padding[i] + s.dilation[i] * s.kernel[i] + s.stride[i];
    valid = valid && s.padding[i] >= 0 && reach < (Index{1} << 30);
  }
  require(valid && y[0] == x[0] && y[1] == s.output(0, x[1]) && y[2] == s.output(1, x[2]) && y[1] > 0 && y[2] > 0 &&
              x[1] * x[2] < (Index{1} << 31),
          "cuda", "{}: {} does not become {} under a window of {}×{}, stride {}, padding {}, dilation {}", operation, x.text(), y.text(),
          s.kernel[0], s.kernel[1], s.stride[0], s.padding[0], s.dilation[0]);
  require(x[3] == y[3], "cuda", "{}: {} channels in, {} out", operation, x[3], y[3]);
  const auto small = [](Index value) { return static_cast<int>(value); };
  return {x[0],
          x[3],
          small(x[1]),
          small(x[2]),
          small(y[1]),
          small(y[2]),
          small(s.kernel[0]),
          small(s.kernel[1]),
          small(s.stride[0]),
          small(s.stride[1]),
          small(s.padding[0]),
          small(s.padding[1]),
          small(s.dilation[0]),
          small(s.dilation[1])};
}

template <class T>
Compute<T> share_of(const Sizes& s) {
  return static_cast<Compute<T>>(1.0 / static_cast<double>(Index{s.kernel_h} * s.kernel_w));
}

/// Calls run(packs, elements in a pack as a constant) for a number of channels.
template <class T, class Run>
void with_packs(Index channels, bool aligned, Run run) {
  constexpr int kPack = Pack<T>::kSize;
  if (aligned && channels % kPack == 0) {
    run(channels / kPack, std::integral_constant<int, kPack>{});
  } else {
    run(channels, std::integral_constant<int, 1>{});
  }
}

/// Images, pixels and channels of x[N,H,W,C] against y[N,C].
struct Pixels {
  Index images = 0, pixels = 0, channels = 0;
};
Pixels pixels_of(const Tensor& image, const Tensor& vector, const char* operation) {
  require(image && vector && image.shape().rank() == 4 && vector.elements() == image.shape()[0] * image.shape()[3], "cuda",
          "{}: {} and {} do not belong together", operation, image.shape().text(), vector.shape().text());
  return {image.shape()[0], image.shape()[1] * image.shape()[2], image.shape()[3]};
}

}  // namespace

void CudaBackend::pool2d_forward(const Pool2dForward& args) {
  const LeavesStatistics scope(*this, args.x, args.y, args.index);
  constexpr const char* kName = "pooling forward";
  Sizes s = sizes_of(args.x, args.y, args.window, kName);
  floating(args.x, kName, [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    T* y = args.y.data<T>();
    std::int32_t* index = optional_numbers<std::int32_t>(args.index, args.y.elements(), kName, "index");
    with_packs<T>(s.packs, packable(x, y, index), [&](Index packs, auto count) {
      constexpr int kCount = decltype(count)::value;
      s.packs = packs;
      const Launch how = over_rows(s.images * s.out_height, s.out_width * packs, handle());
      launch(args.kind == Pooling::kMax ? pool_forward<T, kCount, true> : pool_forward<T, kCount, false>, how, s, x, y, index,
             share_of<T>(s));
    });
  });
}

void CudaBackend::pool2d_backward(const Pool2dBackward& args) {
  constexpr const char* kName = "pooling backward";
  Sizes s = sizes_of(args.dx, args.dy, args.window, kName);
  floating(args.dy, kName, [&](auto type) {
    using T = decltype(type);
    const T* dy = args.dy.data<T>();
    T* dx = args.dx.data<T>();
    const bool max = args.kind == Pooling::kMax;
    const std::int32_t* index = max ? numbers<std::int32_t>(args.index, args.dy.elements(), kName, "index") : nullptr;
    with_packs<T>(s.packs, packable(dy, dx, index), [&](Index packs, auto count) {
      constexpr int kCount = decltype(count)::value;
      s.packs = packs;
      const Launch how = over_rows(s.images * s.height, s.width * packs, handle());
      launch(max ? pool_backward<T, kCount, true> : pool_backward<T, kCount, false>, how, s, dy, index, dx, share_of<T>(s));
    });
  });
}

void CudaBackend::global_avg_pool_forward(const GlobalAvgPoolForward& args) {
  const LeavesStatistics scope(*this, args.x, args.y);
  constexpr const char* kName = "global average pooling forward";
  const Pixels p = pixels_of(args.x, args.y, kName);
  floating(args.x, kName, [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    T* y = args.y.data<T>();
    with_packs<T>(p.channels, packable(x, y), [&](Index packs, auto count) {
      // As many threads for the packs as there are, at most a warp, and no more for the pixels than have some: both powers of two.
      unsigned width = 1, lanes = 1;
      while (width < kWarp && static_cast<Index>(width) < packs) width *= 2;
      while (lanes < kAverageThreads / width && static_cast<Index>(lanes) < p.pixels) lanes *= 2;
      const Launch how{{blocks_for(packs, static_cast<int>(width)), blocks_for(p.images, 1, 1, 65535)}, {width, lanes}, handle()};
      launch(global_average<T, decltype(count)::value>, how, x, y, p.images, p.pixels, packs, 1.0 / static_cast<double>(p.pixels));
    });
  });
}

void CudaBackend::global_avg_pool_backward(const GlobalAvgPoolBackward& args) {
  constexpr const char* kName = "global average pooling backward";
  const Pixels p = pixels_of(args.dx, args.dy, kName);
  floating(args.dy, kName, [&](auto type) {
    using T = decltype(type);
    const T* dy = args.dy.data<T>();
    T* dx = args.dx.data<T>();
    with_packs<T>(p.channels, packable(dy, dx), [&](Index packs, auto count) {
      launch(global_spread<T, decltype(count)::value>, over_rows(p.images * p.pixels, packs, handle()), dy, dx, p.images, p.pixels, packs,
             1.0 / static_cast<double>(p.pixels));
    });
  });
}

}  // namespace starling::cuda
