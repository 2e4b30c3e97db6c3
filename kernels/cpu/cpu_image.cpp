#include <algorithm>
#include <vector>

#include "core/operations/convolutions.h"
#include "core/operations/resampling.h"
#include "kernels/cpu/cpu_backend_detail.h"

// Pooling, and images of another size: of these a line is made of lines first, and then pixel by
// pixel.
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
  const cpu::Geometry g = cpu::geometry(args.x.shape(), args.y.shape(), args.window);
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
  const cpu::Geometry g = cpu::geometry(args.dx.shape(), args.dy.shape(), args.window);
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

namespace {

/// An axis as its result, or with `transposed` its source, is made.
class Axis {
 public:
  Axis(const ResampleAxis& axis, bool transposed) : transposed_(transposed) {
    for (Index p = 0; p < axis.out; ++p) taps_.push_back(axis.taps(p));
    for (Index i = 0; transposed && i < axis.in; ++i) made_.push_back(axis.users_of(i));
  }
  /// Calls f(source, weight) for what pixel i is made of.
  template <class F>
  void for_sources(Index i, const F& f) const {
    const auto at = static_cast<std::size_t>(i);
    const Index first = transposed_ ? made_[at].first : taps_[at].first,
                last = transposed_ ? made_[at].last : taps_[at].last;
    for (Index s = first; s <= last; ++s)
      f(s, transposed_ ? taps_[static_cast<std::size_t>(s)].of(i) : taps_[at].of(s));
  }

 private:
  bool transposed_;
  std::vector<ResampleTaps> taps_;
  std::vector<ResampleAxis::PixelRange> made_;
};

}  // namespace

void CpuBackend::issue(const Resample& args) {
  const Shape &from = args.x.shape(), &to = args.y.shape();
  const Index height = from[1], width = from[2], rows = to[1], columns = to[2], channels = to[3];
  if (args.y.elements() == 0) return;
  const Axis down(args.axis(0), args.transposed), across(args.axis(1), args.transposed);
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    using R = Compute<T>;
    threads_.parallel_for(to[0] * rows, cpu::rows_of_work(columns * channels),
                          [&](Index begin, Index end) {
                            const Index line = width * channels, made = columns * channels;
                            const cpu::Workspace<R> memory(*allocator_, line + made);
                            R *const sum = memory.data(), *const result = sum + line;
                            for (Index r = begin; r < end; ++r) {
                              std::fill_n(sum, line, R(0));
                              down.for_sources(r % rows, [&](Index h, double weight) {
                                const T* x = args.x.data<T>() + (r / rows * height + h) * line;
                                const R factor = static_cast<R>(weight);
                                STARLING_LOOP
                                for (Index i = 0; i < line; ++i)
                                  sum[i] += factor * cpu::widen(x[i]);
                              });
                              std::fill_n(result, made, R(0));
                              for (Index q = 0; q < columns; ++q) {
                                R* const pixel = result + q * channels;
                                across.for_sources(q, [&](Index w, double weight) {
                                  const R* x = sum + w * channels;
                                  const R factor = static_cast<R>(weight);
                                  STARLING_LOOP
                                  for (Index c = 0; c < channels; ++c) pixel[c] += factor * x[c];
                                });
                              }
                              T* y = args.y.data<T>() + r * made;
                              for (Index i = 0; i < made; ++i) y[i] = cpu::narrow<T>(result[i]);
                            }
                          });
  });
}

}  // namespace starling
