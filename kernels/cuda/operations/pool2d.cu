#include <algorithm>
#include <limits>
#include <vector>

#include "core/operations/convolutions.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/cuda/device/row_grid.h"
#include "kernels/cuda/operations/plain.h"

// Pooling. Backward passes gather: each input pixel asks the windows that cover it, in the order of
// their outputs, so sums need no atomics and have one order. Rows are lines of an image, items a
// line's packs of channels.
namespace starling::cuda {
namespace {

/// Two numbers: of height and of width.
struct Sizes {
  Index images, packs;  ///< packs of channels
  int size[2], out[2], kernel[2], stride[2], pad[2], dilation[2];
};

template <class T, int kCount, bool kMax>
__global__ void pool_forward(Sizes s, const T* x, T* y, std::int32_t* index, Compute<T> share) {
  using C = Compute<T>;
  for_items(s.images * s.out[0], s.out[1] * s.packs, [&](Index row, Index item) {
    const Quotient line = divide(row, s.out[0]), pixel = divide(item, s.packs);
    const int top = static_cast<int>(line.rest) * s.stride[0] - s.pad[0],
              left = static_cast<int>(pixel.whole) * s.stride[1] - s.pad[1];
    C result[kCount];
    std::int32_t where[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      result[i] = kMax ? -std::numeric_limits<C>::infinity() : C(0);
      where[i] = -1;
    }
    bool started = false;
    for (int kh = 0; kh < s.kernel[0]; ++kh) {
      const int h = top + kh * s.dilation[0];
      if (h < 0 || h >= s.size[0]) continue;
      for (int kw = 0; kw < s.kernel[1]; ++kw) {
        const int w = left + kw * s.dilation[1];
        if (w < 0 || w >= s.size[1]) continue;
        const std::int32_t here = h * s.size[1] + w;
        C values[kCount];
        load_wide<kCount>(
            x + ((line.whole * s.size[0] * s.size[1] + here) * s.packs + pixel.rest) * kCount,
            values);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          if constexpr (kMax) {
            // NaN wins, so that divergence shows
            const bool better = !started || values[i] > result[i] || values[i] != values[i];
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
    const Index to = (row * s.out[1] * s.packs + item) * kCount;
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
__global__ void pool_backward(Sizes s, const T* dy, const std::int32_t* index, T* dx,
                              Compute<T> share) {
  using C = Compute<T>;
  for_items(s.images * s.size[0], s.size[1] * s.packs, [&](Index row, Index item) {
    const Quotient line = divide(row, s.size[0]), pixel = divide(item, s.packs);
    const int h = static_cast<int>(line.rest), w = static_cast<int>(pixel.whole);
    const std::int32_t here = h * s.size[1] + w;
    const Covering down = covering(h, s.kernel[0], s.stride[0], s.pad[0], s.dilation[0], s.out[0]);
    const Covering across =
        covering(w, s.kernel[1], s.stride[1], s.pad[1], s.dilation[1], s.out[1]);
    C sum[kCount] = {};
    for (int p = down.first; p <= down.last; ++p) {
      if (s.dilation[0] > 1 && (h + s.pad[0] - p * s.stride[0]) % s.dilation[0] != 0) continue;
      for (int q = across.first; q <= across.last; ++q) {
        if (s.dilation[1] > 1 && (w + s.pad[1] - q * s.stride[1]) % s.dilation[1] != 0) continue;
        const Index from =
            (((line.whole * s.out[0] + p) * s.out[1] + q) * s.packs + pixel.rest) * kCount;
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
    store_narrow<kCount>(sum, dx + (row * s.size[1] * s.packs + item) * kCount);
  });
}

/// The sizes of a pooling from x[N,H,W,C] and y[N,P,Q,C].
Sizes sizes_of(const Tensor& image, const Tensor& result, const Window2d& s) {
  const Shape x = image.shape(), y = result.shape();
  Sizes sizes{.images = x[0], .packs = x[3]};
  for (int axis = 0; axis < 2; ++axis) {
    const auto i = static_cast<std::size_t>(axis);
    const Index in = x[axis + 1], out = y[axis + 1];
    const auto set = [&](int(&to)[2], Index value) { to[i] = static_cast<int>(value); };
    set(sizes.size, in);
    set(sizes.out, out);
    set(sizes.kernel, s.kernel[i]);
    set(sizes.stride, s.stride[i]);
    set(sizes.pad, s.padding[i]);
    set(sizes.dilation, s.dilation[i]);
  }
  return sizes;
}

template <class T>
Compute<T> share_of(const Sizes& s) {
  return static_cast<Compute<T>>(1.0 / static_cast<double>(Index{s.kernel[0]} * s.kernel[1]));
}

/// Calls run.template operator()<type, elements in a pack>(sizes, image's numbers, result's).
template <class Run>
void with_pooling(const Tensor& image, const Tensor& result, const std::int32_t* index,
                  const Window2d& window, Run run) {
  Sizes s = sizes_of(image, result, window);
  floating(image, [&](auto type) {
    using T = decltype(type);
    T *x = image.data<T>(), *y = result.data<T>();
    const auto in_packs = [&]<int kCount>() {
      s.packs /= kCount;
      run.template operator()<T, kCount>(s, x, y);
    };
    with_packs<T>(s.packs, in_packs, x, y, index);
  });
}

/// A blur's filter of one channel.
struct Filter {
  float values[kLongestBlur * kLongestBlur];
};
/// to[C, taps]: the same for every channel.
template <class T>
__global__ void __launch_bounds__(kThreads)
    repeat_filter(Filter filter, Index channels, int taps, T* to) {
  for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < channels * taps;
       i += Index{gridDim.x} * blockDim.x) {
    to[i] = static_cast<T>(filter.values[i % taps]);
  }
}

/// A blur as what it is: a convolution of every channel alone, with the same filter for each.
/// `type`: the images'.
struct Blur {
  Window2d window;
  Tensor weight;
};
Blur blur_of(CudaBackend& backend, Window2d window, Index channels, DType type) {
  window.groups = channels;
  const std::vector<double> shares = blur_filter(window);
  Filter filter{};
  std::transform(shares.begin(), shares.end(), filter.values,
                 [](double share) { return static_cast<float>(share); });
  const auto taps = static_cast<Index>(shares.size());
  const Tensor weight = backend.scratch(channels * taps, type);
  floating(weight, [&](auto number) {
    using T = decltype(number);
    launch(repeat_filter<T>,
           {{blocks_for(channels * taps, kThreads)}, {kThreads}, backend.handle()}, filter,
           channels, static_cast<int>(taps), weight.data<T>());
  });
  return {window, weight.reshaped({channels, window.kernel[0], window.kernel[1], 1})};
}

}  // namespace

void CudaBackend::issue(const Pool2dForward& args) {
  if (args.kind == Pooling::kBlur) {
    const Blur blur = blur_of(*this, args.window, args.x.shape()[3], args.x.dtype());
    const Conv2dForward conv{
        .x = args.x, .weight = blur.weight, .bias = {}, .y = args.y, .window = blur.window};
    return takes_depthwise(conv.x, conv.y, conv.window) ? depthwise_conv2d_forward(*this, conv)
                                                        : plain_conv2d_forward(*this, conv);
  }
  std::int32_t* index = optional<std::int32_t>(args.index);
  with_pooling(args.x, args.y, index, args.window,
               [&]<class T, int kCount>(const Sizes& s, const T* x, T* y) {
                 const Launch how = over_rows(s.images * s.out[0], s.out[1] * s.packs, handle());
                 launch(args.kind == Pooling::kMax ? pool_forward<T, kCount, true>
                                                   : pool_forward<T, kCount, false>,
                        how, s, x, y, index, share_of<T>(s));
               });
}

void CudaBackend::issue(const Pool2dBackward& args) {
  if (args.kind == Pooling::kBlur) {
    const Blur blur = blur_of(*this, args.window, args.dx.shape()[3], args.dy.dtype());
    const Conv2dBackwardData conv{
        .dy = args.dy, .weight = blur.weight, .dx = args.dx, .window = blur.window};
    return takes_depthwise(conv.dx, conv.dy, conv.window)
               ? depthwise_conv2d_backward_data(*this, conv)
               : plain_conv2d_backward_data(*this, conv);
  }
  const bool max = args.kind == Pooling::kMax;
  const std::int32_t* index = max ? args.index.data<std::int32_t>() : nullptr;
  with_pooling(args.dx, args.dy, index, args.window,
               [&]<class T, int kCount>(const Sizes& s, T* dx, const T* dy) {
                 const Launch how = over_rows(s.images * s.size[0], s.size[1] * s.packs, handle());
                 launch(max ? pool_backward<T, kCount, true> : pool_backward<T, kCount, false>, how,
                        s, dy, index, dx, share_of<T>(s));
               });
}

}  // namespace starling::cuda
