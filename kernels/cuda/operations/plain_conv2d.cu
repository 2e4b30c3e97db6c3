#include "core/operations/convolutions.h"
#include "kernels/cuda/device/row_grid.h"
#include "kernels/cuda/device/tiled_product.h"
#include "kernels/cuda/operations/plain.h"

// Convolutions as implicit matrix products: an element's position in the image is computed when it
// is loaded.
namespace starling::cuda {
namespace {

struct Geometry {
  Index height, width, channels, out_height, out_width, out_channels;
  int kernel_w, kernel_area, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  int group_channels, group_out_channels;
};

struct Pixel {
  Index image;
  int h, w;
};
STARLING_HD Pixel pixel_of(Index index, Index height, Index width) {
  const Quotient line = divide(index, width), image = divide(line.whole, height);
  return {image.whole, static_cast<int>(image.rest), static_cast<int>(line.rest)};
}

/// An index along (kernel row, kernel column, channel of the group).
struct Tap {
  int channel, h, w;  ///< h and w: times the dilation
};
STARLING_HD Tap tap_of(Index index, int channels, const Geometry& g) {
  const auto i = static_cast<unsigned>(index), per = static_cast<unsigned>(channels),
             wide = static_cast<unsigned>(g.kernel_w);
  const unsigned tap = i / per, h = tap / wide;
  return {static_cast<int>(i - tap * per), static_cast<int>(h) * g.dilation_h,
          static_cast<int>(tap - h * wide) * g.dilation_w};
}

/// The pixels that go with a filter's taps, as a matrix whose columns are (kH, kW, channels of the
/// group): a of two passes. Forward its rows are output pixels, each with the window of x that it
/// reads; else input pixels, each with the outputs in dy that it went into.
template <class T, bool kForward>
struct Windows {
  const T* data;
  Geometry g;

  STARLING_HD bool along_k() const { return true; }
  STARLING_HD int channels_each() const {
    return kForward ? g.group_channels : g.group_out_channels;
  }

  struct State {
    const T* image[kPerThread];  ///< null past the last pixel
    int h[kPerThread], w[kPerThread];
    int k0;

    __device__ State(const Windows& from, Index group, Index first, const TilePlace& place,
                     Index size)
        : k0(place.k) {
      const Geometry& g = from.g;
      const Index image_size =
          kForward ? g.height * g.width * g.channels : g.out_height * g.out_width * g.out_channels;
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        const Index at = first + place.across + i * place.across_step;
        const Pixel p = pixel_of(at < size ? at : 0, kForward ? g.out_height : g.height,
                                 kForward ? g.out_width : g.width);
        image[i] =
            at < size ? from.data + p.image * image_size + group * from.channels_each() : nullptr;
        h[i] = kForward ? p.h * g.stride_h - g.pad_h : p.h + g.pad_h;
        w[i] = kForward ? p.w * g.stride_w - g.pad_w : p.w + g.pad_w;
      }
    }
    __device__ void load(const Windows& from, Index k, Index end,
                         Compute<T> (&to)[kPerThread]) const {
      const Geometry& g = from.g;
      const bool some = k + k0 < end;
      const Tap tap = tap_of(some ? k + k0 : 0, from.channels_each(), g);
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        Index offset = 0;
        bool inside = some && image[i];
        if constexpr (kForward) {
          const int y = h[i] + tap.h, x = w[i] + tap.w;
          inside = inside && y >= 0 && y < g.height && x >= 0 && x < g.width;
          offset = (y * g.width + x) * g.channels + tap.channel;
        } else {
          const int far_h = h[i] - tap.h, far_w = w[i] - tap.w;
          const int p = far_h / g.stride_h, q = far_w / g.stride_w;
          inside = inside && far_h >= 0 && far_w >= 0 && p * g.stride_h == far_h &&
                   q * g.stride_w == far_w && p < g.out_height && q < g.out_width;
          offset = (p * g.out_width + q) * g.out_channels + tap.channel;
        }
        to[i] = inside ? static_cast<Compute<T>>(image[i][offset]) : Compute<T>(0);
      }
    }
  };
};

/// The weights [O, kH, kW, C/groups] as [(kH, kW, O/groups), C/groups]: b of the data gradient.
template <class T>
struct BackFilters {
  const T* weight;
  Geometry g;

  STARLING_HD bool along_k() const { return false; }

  struct State {
    Index base;
    bool inside;
    int k0, k_step;

    __device__ State(const BackFilters& from, Index group, Index first, const TilePlace& place,
                     Index size)
        : base(group * from.g.group_out_channels * from.g.kernel_area * from.g.group_channels +
               first + place.across),
          inside(first + place.across < size),
          k0(place.k),
          k_step(place.k_step) {}
    __device__ void load(const BackFilters& from, Index k, Index end,
                         Compute<T> (&to)[kPerThread]) const {
      const Geometry& g = from.g;
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        const Index at = k + k0 + i * k_step;
        const auto index = static_cast<unsigned>(at),
                   filters = static_cast<unsigned>(g.group_out_channels), tap = index / filters;
        const Index offset =
            base + (Index{index - tap * filters} * g.kernel_area + tap) * g.group_channels;
        to[i] = inside && at < end ? static_cast<Compute<T>>(from.weight[offset]) : Compute<T>(0);
      }
    }
  };
};

/// Windows the other way round, [output pixels, (kH, kW, channels of the group)] with the pixels
/// along K: b of the weight gradient.
template <class T>
struct WindowColumns {
  const T* x;
  Geometry g;

  STARLING_HD bool along_k() const { return false; }

  struct State {
    Tap tap;
    bool inside;
    int k0, k_step;

    __device__ State(const WindowColumns& from, Index group, Index first, const TilePlace& place,
                     Index size)
        : tap(tap_of(first + place.across, from.g.group_channels, from.g)),
          inside(first + place.across < size),
          k0(place.k),
          k_step(place.k_step) {
      tap.channel += static_cast<int>(group) * from.g.group_channels;
      tap.h -= from.g.pad_h;
      tap.w -= from.g.pad_w;
    }
    __device__ void load(const WindowColumns& from, Index k, Index end,
                         Compute<T> (&to)[kPerThread]) const {
      const Geometry& g = from.g;
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        const Index at = k + k0 + i * k_step;
        const bool some = inside && at < end;
        const Pixel p = pixel_of(some ? at : 0, g.out_height, g.out_width);
        const int h = p.h * g.stride_h + tap.h, w = p.w * g.stride_w + tap.w;
        const bool within = some && h >= 0 && h < g.height && w >= 0 && w < g.width;
        const Index offset = ((p.image * g.height + h) * g.width + w) * g.channels + tap.channel;
        to[i] = within ? static_cast<Compute<T>>(from.x[offset]) : Compute<T>(0);
      }
    }
  };
};

/// The sizes of a convolution from x[N,H,W,C] to y[N,P,Q,O].
Geometry geometry(const Tensor& x, const Tensor& y, const Window2d& window) {
  const Shape &in = x.shape(), &out = y.shape();
  // Places within one filter are computed in 32 bits, as those within an image (check_window).
  constexpr Index kMost = Index{1} << 30;
  require(window.kernel[0] * window.kernel[1] * std::max(in[3], out[3]) < kMost, "cuda",
          "conv2d: {} is too large", in.text());
  const auto narrow = [](Index value) { return static_cast<int>(value); };
  return {.height = in[1],
          .width = in[2],
          .channels = in[3],
          .out_height = out[1],
          .out_width = out[2],
          .out_channels = out[3],
          .kernel_w = narrow(window.kernel[1]),
          .kernel_area = narrow(window.kernel[0] * window.kernel[1]),
          .stride_h = narrow(std::min(window.stride[0], kMost)),
          .stride_w = narrow(std::min(window.stride[1], kMost)),
          .pad_h = narrow(window.padding[0]),
          .pad_w = narrow(window.padding[1]),
          .dilation_h = narrow(window.dilation[0]),
          .dilation_w = narrow(window.dilation[1]),
          .group_channels = narrow(in[3] / window.groups),
          .group_out_channels = narrow(out[3] / window.groups)};
}

Index filter_elements(const Geometry& g) { return Index{g.kernel_area} * g.group_channels; }

}  // namespace

void plain_conv2d_forward(CudaBackend& backend, const Conv2dForward& args) {
  const Geometry g = geometry(args.x, args.y, args.window);
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    const T* weight = args.weight.data<T>();
    const C* bias = optional<C>(args.bias);
    const ProductSizes s{.m = args.y.shape()[0] * g.out_height * g.out_width,
                         .n = g.group_out_channels,
                         .k = filter_elements(g),
                         .groups = static_cast<int>(args.window.groups)};
    const Index filter = filter_elements(g);
    launch_product<C, T>(backend, Windows<T, true>{args.x.data<T>(), g},
                         PlainMatrix<T>{weight, filter, 1, g.group_out_channels * filter}, s,
                         {args.y.data<T>(), bias, g.out_channels, g.group_out_channels, false});
  });
}

void plain_conv2d_backward_data(CudaBackend& backend, const Conv2dBackwardData& args) {
  const Geometry g = geometry(args.dx, args.dy, args.window);
  floating(args.dy, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    const T* weight = args.weight.data<T>();
    const ProductSizes s{.m = args.dx.shape()[0] * g.height * g.width,
                         .n = g.group_channels,
                         .k = Index{g.kernel_area} * g.group_out_channels,
                         .groups = static_cast<int>(args.window.groups)};
    launch_product<C, T>(backend, Windows<T, false>{args.dy.data<T>(), g},
                         BackFilters<T>{weight, g}, s,
                         {args.dx.data<T>(), nullptr, g.channels, g.group_channels, false});
  });
}

void plain_conv2d_backward_weights(CudaBackend& backend, const Conv2dBackwardWeights& args) {
  const Geometry g = geometry(args.x, args.dy, args.window);
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    using C = Compute<T>;
    C* dweight = args.dweight.data<C>();
    const ProductSizes s{.m = g.group_out_channels,
                         .n = filter_elements(g),
                         .k = args.dy.shape()[0] * g.out_height * g.out_width,
                         .groups = static_cast<int>(args.window.groups)};
    launch_product<C, C>(backend,
                         PlainMatrix<T>{args.dy.data<T>(), 1, g.out_channels, g.group_out_channels},
                         WindowColumns<T>{args.x.data<T>(), g}, s,
                         {dweight, nullptr, filter_elements(g),
                          g.group_out_channels * filter_elements(g), args.accumulate});
  });
}

}  // namespace starling::cuda
