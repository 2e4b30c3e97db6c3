#include <algorithm>
#include <cstring>

#include "core/operations/convolutions.h"
#include "kernels/cpu/cpu_backend_detail.h"

// Pooling.
namespace starling {

using cpu::Index;

template <class F>
void CpuBackend::by_image(const Tensor& from, const Tensor& to, F&& f) {
  const Index images = from.shape()[0], each = std::max<Index>(images, 1),
              x_size = from.elements() / each, y_size = to.elements() / each;
  floating(from, [&](auto type) {
    using T = decltype(type);
    const T* x = from.data<T>();
    T* y = to.data<T>();
    if constexpr (cpu::kIsLow<T>) {
      const cpu::Workspace<float> scratch(*allocator_, threads_.count() * (x_size + y_size));
      threads_.parallel_blocks(images, 1, [&](Index part, Index n, Index) {
        float* wide_x = scratch.data() + part * (x_size + y_size);
        float* wide_y = wide_x + x_size;
        kernels<T>().widen(x + n * x_size, wide_x, x_size);
        f(kernels<float>(), n, Index{1}, static_cast<const float*>(wide_x), wide_y);
        kernels<T>().narrow(wide_y, y + n * y_size, y_size);
      });
    } else {
      threads_.parallel_for(images, 1, [&](Index begin, Index end) {
        f(kernels<T>(), begin, end - begin, x + begin * x_size, y + begin * y_size);
      });
    }
  });
}

namespace {
/// The sizes of a pooling of `image` into `result`.
cpu::Geometry pooling(const Tensor& image, const Tensor& result, const Window2d& window) {
  const cpu::Geometry g = cpu::geometry(image.shape(), result.shape(), window);
  return g;
}

/// A blur's window as that of a convolution of every channel alone, which it is carried out as.
Window2d by_channel(Window2d window, Index channels) {
  window.groups = channels;
  return window;
}
}  // namespace

Tensor CpuBackend::blur_weight(const Window2d& window, Index channels, DType type) {
  const std::vector<double> filter = blur_filter(window);
  Tensor weight(*this, {channels, window.kernel[0], window.kernel[1], 1}, type);
  floating(weight, [&](auto number) {
    using T = decltype(number);
    T* to = weight.data<T>();
    for (Index c = 0; c < channels; ++c) {
      for (const double share : filter) *to++ = cpu::narrow<T>(static_cast<Compute<T>>(share));
    }
  });
  return weight;
}

void CpuBackend::issue(const Pool2dForward& args) {
  const cpu::Geometry g = pooling(args.x, args.y, args.window);
  if (args.kind == Pooling::kBlur) {
    return conv2d_forward({.x = args.x,
                           .weight = blur_weight(args.window, g.channels, args.x.dtype()),
                           .bias = {},
                           .y = args.y,
                           .window = by_channel(args.window, g.channels)});
  }
  std::int32_t* index = cpu::optional<std::int32_t>(args.index);
  by_image(args.x, args.y, [&](const auto& k, Index first, Index images, auto* x, auto* y) {
    if (args.kind == Pooling::kMax) {
      k.max_pool_forward(x, y,
                         index ? index + first * g.out_height * g.out_width * g.channels : nullptr,
                         g, 0, images);
    } else {
      k.avg_pool_forward(x, y, g, 0, images);
    }
  });
}

void CpuBackend::issue(const Pool2dBackward& args) {
  const cpu::Geometry g = pooling(args.dx, args.dy, args.window);
  if (args.kind == Pooling::kBlur) {
    return conv2d_backward_data({.dy = args.dy,
                                 .weight = blur_weight(args.window, g.channels, args.dy.dtype()),
                                 .dx = args.dx,
                                 .window = by_channel(args.window, g.channels)});
  }
  const bool max = args.kind == Pooling::kMax;
  const std::int32_t* index = max ? args.index.data<std::int32_t>() : nullptr;
  by_image(args.dy, args.dx, [&](const auto& k, Index first, Index images, auto* dy, auto* dx) {
    if (max) {
      k.max_pool_backward(dy, index + first * g.out_height * g.out_width * g.channels, dx, g, 0,
                          images);
    } else {
      k.avg_pool_backward(dy, dx, g, 0, images);
    }
  });
}

}  // namespace starling
