#include <algorithm>

#include "core/operations/convolutions.h"
#include "core/operations/map.h"
#include "core/operations/products.h"
#include "core/operations/reduce.h"
#include "kernels/cpu/cpu_backend_detail.h"

// Convolutions, matrix products and their bias gradients.
namespace starling {

using cpu::Index;

namespace cpu {

Geometry geometry(const Shape& x, const Shape& y, const Window2d& window) {
  Geometry g;
  g.images = x[0];
  g.height = x[1];
  g.width = x[2];
  g.channels = x[3];
  g.out_height = y[1];
  g.out_width = y[2];
  g.out_channels = y[3];
  g.kernel_h = window.kernel[0];
  g.kernel_w = window.kernel[1];
  g.stride_h = window.stride[0];
  g.stride_w = window.stride[1];
  g.pad_h = window.padding[0];
  g.pad_w = window.padding[1];
  g.dilation_h = window.dilation[0];
  g.dilation_w = window.dilation[1];
  g.groups = window.groups;
  return g;
}

namespace {
Index weight_elements(const Geometry& g) {
  return g.out_channels * g.kernel_h * g.kernel_w * (g.channels / g.groups);
}
}  // namespace

}  // namespace cpu

namespace {
Index x_elements(const cpu::Geometry& g) { return g.images * g.height * g.width * g.channels; }
Index y_elements(const cpu::Geometry& g) {
  return g.images * g.out_height * g.out_width * g.out_channels;
}

/// Of windows that are gathered at a time
constexpr Index kWindowNumbers = Index{1} << 20, kLeastPixels = 1024;

/// Whether the windows of a convolution are its input as it lies there.
bool is_product(const cpu::Geometry& g) {
  return g.kernel_h == 1 && g.kernel_w == 1 && g.pad_h == 0 && g.pad_w == 0 && g.stride_h == 1 &&
         g.stride_w == 1 && g.out_height == g.height && g.out_width == g.width;
}

/// Whether windows overlap at every pixel, so that gathering them writes each input many times.
bool is_dense(const cpu::Geometry& g) {
  return g.stride_h == 1 && g.stride_w == 1 && g.kernel_h * g.kernel_w > 1;
}

/// Whether products with gathered windows find the gradient of the weights faster than oneDNN's
/// bf16 convolution: on a Xeon 1.4 to 10 times, most with few pixels, or strides, and many
/// channels; patches, which do not overlap, count as pixels of so many more channels.
bool suits_product(const cpu::Geometry& g) {
  const bool patches = g.stride_h >= g.kernel_h && g.stride_w >= g.kernel_w;
  const Index channels = patches ? g.kernel_h * g.kernel_w * g.channels : g.channels;
  return g.groups == 1 && g.dilation_h == 1 && g.dilation_w == 1 &&
         channels * g.out_channels >= (is_dense(g) ? 65536 : 8192);
}

/// The same of the forward pass, and of the gradient of the data.
bool suits_product_forward(const cpu::Geometry& g) {
  return suits_product(g) && !is_product(g) && g.out_height * g.out_width <= 16;
}
bool suits_product_data(const cpu::Geometry& g) {
  return suits_product(g) && (!is_dense(g) || g.out_height * g.out_width <= 16);
}

/// Of the pixels whose position along an axis is r modulo the stride, and so the same taps reach
/// them: these taps are first, first + stride, …, and the gradient of these pixels is a convolution
/// of dy with stride 1 and such padding, with the taps in reverse.
struct Phase {
  Index pixels = 0, first = 0, taps = 0, padding = 0;
};
Phase phase_of(Index r, Index size, Index kernel, Index stride, Index padding) {
  Phase phase;
  phase.pixels = (size - r + stride - 1) / stride;
  phase.first = (r + padding) % stride;
  phase.taps = phase.first < kernel ? (kernel - phase.first + stride - 1) / stride : 0;
  phase.padding = phase.taps - 1 - (r + padding) / stride;
  return phase;
}

/// The windows of output pixels first … last - 1, counted over N·P·Q, each a row of kH·kW·C
/// numbers, without dilation.
template <class T>
void gather_windows(const cpu::Geometry& g, const T* x, T* to, Index first, Index last) {
  const Index line = g.kernel_w * g.channels;
  for (Index pixel = first; pixel < last; ++pixel) {
    const Index row = pixel / g.out_width, column = pixel % g.out_width * g.stride_w - g.pad_w,
                left = std::clamp<Index>(-column, 0, g.kernel_w),
                right = std::clamp(g.width - column, left, g.kernel_w);
    for (Index k = 0; k < g.kernel_h; ++k, to += line) {
      const Index y = row % g.out_height * g.stride_h - g.pad_h + k;
      if (y < 0 || y >= g.height) {
        std::fill_n(to, line, T{});
        continue;
      }
      const T* from = x + ((row / g.out_height * g.height + y) * g.width + column) * g.channels;
      std::fill_n(to, left * g.channels, T{});
      std::copy(from + left * g.channels, from + right * g.channels, to + left * g.channels);
      std::fill(to + right * g.channels, to + line, T{});
    }
  }
}
}  // namespace

/// Calls run(windows, first, pixels) for runs of output pixels, whose windows are rows of
/// kH·kW·C numbers.
template <class T, class F>
void CpuBackend::by_windows(const cpu::Geometry& g, const T* x, const F& run) {
  const Index window = g.kernel_h * g.kernel_w * g.channels,
              pixels = g.images * g.out_height * g.out_width;
  if (is_product(g)) return run(x, 0, pixels);
  const Index piece = std::min(pixels, std::max(kLeastPixels, kWindowNumbers / window));
  const cpu::Workspace<T> windows(*allocator_, piece * window);
  for (Index first = 0; first < pixels; first += piece) {
    const Index count = std::min(piece, pixels - first);
    threads_.parallel_for(count, 8, [&](Index begin, Index end) {
      gather_windows(g, x, windows.data() + begin * window, first + begin, first + end);
    });
    run(windows.data(), first, count);
  }
}

/// The gradient of the data as products with windows of dy.
template <class T>
void CpuBackend::conv2d_data_by_windows(const cpu::Geometry& g, const T* dy, const T* weight,
                                        T* dx) {
  const Index in = g.channels, out = g.out_channels;
  const bool one_tap = g.kernel_h * g.kernel_w == 1, phases = g.stride_h * g.stride_w > 1;
  for (Index r = 0; r < g.stride_h * g.stride_w; ++r) {
    const Index top = r / g.stride_w, left = r % g.stride_w;
    if (top >= g.height || left >= g.width) continue;
    const Phase rows = phase_of(top, g.height, g.kernel_h, g.stride_h, g.pad_h),
                columns = phase_of(left, g.width, g.kernel_w, g.stride_w, g.pad_w);
    // Copies numbers to pixels first, first + 1, … of the phase; no numbers: zeros
    const auto to_places = [&](const T* from, Index first, Index pixels) {
      threads_.parallel_for(pixels, 64, [&](Index begin, Index end) {
        for (Index i = begin; i < end; ++i) {
          const Index row = (first + i) / columns.pixels, column = (first + i) % columns.pixels,
                      y = row % rows.pixels * g.stride_h + top;
          T* to =
              dx + ((row / rows.pixels * g.height + y) * g.width + column * g.stride_w + left) * in;
          from ? std::copy_n(from + i * in, in, to) : std::fill_n(to, in, T{});
        }
      });
    };
    const Index taps = rows.taps * columns.taps;
    if (taps == 0) {
      to_places(nullptr, 0, g.images * rows.pixels * columns.pixels);
      continue;
    }
    const cpu::Workspace<T> filters(*allocator_, one_tap ? 0 : taps * out * in);
    threads_.parallel_for(one_tap ? 0 : taps * out, 64, [&](Index begin, Index end) {
      for (Index i = begin; i < end; ++i) {
        const Index tap = taps - 1 - i / out, k = rows.first + tap / columns.taps * g.stride_h,
                    l = columns.first + tap % columns.taps * g.stride_w;
        std::copy_n(weight + ((i % out * g.kernel_h + k) * g.kernel_w + l) * in, in,
                    filters.data() + i * in);
      }
    });
    cpu::Geometry of_dy = g;
    of_dy.height = g.out_height;
    of_dy.width = g.out_width;
    of_dy.channels = out;
    of_dy.out_height = rows.pixels;
    of_dy.out_width = columns.pixels;
    of_dy.out_channels = in;
    of_dy.kernel_h = rows.taps;
    of_dy.kernel_w = columns.taps;
    of_dy.stride_h = of_dy.stride_w = 1;
    of_dy.pad_h = rows.padding;
    of_dy.pad_w = columns.padding;
    cpu::Product p = cpu::Product{.n = in, .k = taps * out}.dense();
    by_windows(of_dy, dy, [&](const T* windows, Index first, Index pixels) {
      p.m = pixels;
      const cpu::Workspace<T> apart(*allocator_, phases ? pixels * in : 0);
      dnnl_.matmul(p, windows, one_tap ? weight : filters.data(), nullptr,
                   phases ? apart.data() : dx + first * in);
      if (phases) to_places(apart.data(), first, pixels);
    });
  }
}

std::optional<cpu::Winograd> CpuBackend::winograd_for(const cpu::Geometry& g) {
  if (!kernels<float>().winograd.convolve || !cpu::suits_winograd(g)) return std::nullopt;
  return cpu::Winograd(kernels<float>(), threads_, *allocator_);
}

template <class T>
void CpuBackend::conv2d_forward_of(const cpu::Geometry& g, const T* x, const T* weight,
                                   const Compute<T>* bias, T* y) {
  if constexpr (std::is_same_v<T, double>) {
    threads_.parallel_for(g.images * g.out_height, 1, [&](Index begin, Index end) {
      kernels<T>().conv_forward(g, x, weight, bias, y, begin, end);
    });
  } else if constexpr (std::is_same_v<T, float>) {
    if (const auto winograd = winograd_for(g)) return winograd->forward(g, x, weight, bias, y);
    dnnl_.conv_forward(g, x, weight, bias, y);
  } else {
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (bf16_products_ && suits_product_forward(g)) {
        cpu::Product p =
            cpu::Product{
                .n = g.out_channels, .k = g.kernel_h * g.kernel_w * g.channels, .transpose_b = true}
                .dense();
        return by_windows(g, x, [&](const T* windows, Index first, Index pixels) {
          p.m = pixels;
          dnnl_.matmul(p, windows, weight, bias, y + first * g.out_channels);
        });
      }
      if (bf16_products_) return dnnl_.conv_forward(g, x, weight, bias, y);
    }
    const auto wide_x = widened(x, x_elements(g)),
               wide_weight = widened(weight, cpu::weight_elements(g));
    const cpu::Workspace<float> wide_y(*allocator_, y_elements(g));
    conv2d_forward_of<float>(g, wide_x.data(), wide_weight.data(), bias, wide_y.data());
    narrow(wide_y.data(), y, y_elements(g));
  }
}

void CpuBackend::issue(const Conv2dForward& args) {
  const cpu::Geometry g = cpu::geometry(args.x.shape(), args.y.shape(), args.window);
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    conv2d_forward_of<T>(g, args.x.data<T>(), args.weight.data<T>(),
                         cpu::optional<Compute<T>>(args.bias), args.y.data<T>());
  });
}

template <class T>
void CpuBackend::conv2d_backward_data_of(const cpu::Geometry& g, const T* dy, const T* weight,
                                         T* dx) {
  if constexpr (std::is_same_v<T, double>) {
    threads_.parallel_for(g.images * g.height, 1, [&](Index begin, Index end) {
      kernels<T>().conv_backward_data(g, dy, weight, dx, begin, end);
    });
  } else if constexpr (std::is_same_v<T, float>) {
    if (const auto winograd = winograd_for(g)) return winograd->backward_data(g, dy, weight, dx);
    dnnl_.conv_backward_data(g, dy, weight, dx);
  } else {
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (bf16_products_) {
        return suits_product_data(g) ? conv2d_data_by_windows(g, dy, weight, dx)
                                     : dnnl_.conv_backward_data(g, dy, weight, dx);
      }
    }
    const auto wide_dy = widened(dy, y_elements(g)),
               wide_weight = widened(weight, cpu::weight_elements(g));
    const cpu::Workspace<float> wide_dx(*allocator_, x_elements(g));
    conv2d_backward_data_of<float>(g, wide_dy.data(), wide_weight.data(), wide_dx.data());
    narrow(wide_dx.data(), dx, x_elements(g));
  }
}

void CpuBackend::issue(const Conv2dBackwardData& args) {
  const cpu::Geometry g = cpu::geometry(args.dx.shape(), args.dy.shape(), args.window);
  floating(args.dy, [&](auto type) {
    using T = decltype(type);
    conv2d_backward_data_of<T>(g, args.dy.data<T>(), args.weight.data<T>(), args.dx.data<T>());
  });
}

/// With the same bits on any number of threads.
template <class T>
void CpuBackend::depthwise_backward_weights(const cpu::Geometry& g, const T* x, const T* dy,
                                            T* dweight, bool accumulate) {
  constexpr Index kPartsOfBatch = 16, kBlock = cpu::kDepthwiseBlock;
  const Index blocks = (g.channels + kBlock - 1) / kBlock, taps = g.kernel_h * g.kernel_w,
              block = taps * kBlock,
              scratch = (cpu::depthwise_rows(g) * cpu::depthwise_columns(g) + g.out_width) * kBlock;
  const Index images = (g.images + kPartsOfBatch - 1) / kPartsOfBatch,
              parts = (g.images + images - 1) / images;
  const cpu::Workspace<T> lines(*allocator_, threads_.count() * scratch),
      sums(*allocator_, parts * blocks * block);
  threads_.parallel_blocks(parts * blocks, 1, [&](Index thread, Index at, Index) {
    const Index first = at / blocks * images;
    kernels<T>().depthwise_backward_weights(g, x, dy, sums.data() + at * block, first,
                                            std::min(g.images, first + images),
                                            at % blocks * kBlock, lines.data() + thread * scratch);
  });
  // Added up in the order of the images
  for (Index c = 0; c < g.channels; ++c) {
    for (Index t = 0; t < taps; ++t) {
      double total = accumulate ? static_cast<double>(dweight[c * taps + t]) : 0.0;
      const T* from = sums.data() + (c / kBlock) * block + t * kBlock + c % kBlock;
      for (Index part = 0; part < parts; ++part)
        total += static_cast<double>(from[part * blocks * block]);
      dweight[c * taps + t] = static_cast<T>(total);
    }
  }
}

template <class T>
void CpuBackend::conv2d_backward_weights_of(const cpu::Geometry& g, const T* x, const T* dy,
                                            Compute<T>* dweight, bool accumulate) {
  if constexpr (!cpu::kIsLow<T>) {
    if (cpu::is_depthwise(g)) return depthwise_backward_weights<T>(g, x, dy, dweight, accumulate);
  }
  if constexpr (std::is_same_v<T, double>) {
    threads_.parallel_for(g.out_channels, 1, [&](Index begin, Index end) {
      kernels<T>().conv_backward_weights(g, x, dy, dweight, begin, end, accumulate);
    });
  } else if constexpr (std::is_same_v<T, float>) {
    if (const auto winograd = winograd_for(g))
      return winograd->backward_weights(g, x, dy, dweight, accumulate);
    dnnl_.conv_backward_weights(g, x, dy, dweight, accumulate);
  } else {
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (bf16_products_ && suits_product(g)) {
        cpu::Product p = cpu::Product{.m = g.out_channels,
                                      .n = g.kernel_h * g.kernel_w * g.channels,
                                      .k = g.images * g.out_height * g.out_width,
                                      .transpose_a = true,
                                      .accumulate = accumulate}
                             .dense();
        return by_windows(g, x, [&](const T* windows, Index first, Index pixels) {
          p.k = pixels;
          dnnl_.matmul(p, dy + first * g.out_channels, windows, nullptr, dweight);
          p.accumulate = true;
        });
      }
      // The gradient of large windows that oneDNN 2.6 does not know by heart takes it longer than
      // anything else.
      const bool slow = cpu::is_depthwise(g) && g.kernel_h * g.kernel_w > 9;
      if (bf16_products_ && !slow)
        return dnnl_.conv_backward_weights(g, x, dy, dweight, accumulate);
    }
    const auto wide_x = widened(x, x_elements(g)), wide_dy = widened(dy, y_elements(g));
    conv2d_backward_weights_of<float>(g, wide_x.data(), wide_dy.data(), dweight, accumulate);
  }
}

void CpuBackend::issue(const Conv2dBackwardWeights& args) {
  const cpu::Geometry g = cpu::geometry(args.x.shape(), args.dy.shape(), args.window);
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    conv2d_backward_weights_of<T>(g, args.x.data<T>(), args.dy.data<T>(),
                                  args.dweight.data<Compute<T>>(), args.accumulate);
  });
  if (args.dbias) reduce({args.dy, args.dbias, args.accumulate});
}

template <class T>
void CpuBackend::matmul_of(const cpu::Product& p, const T* a, const T* b, const Compute<T>* bias,
                           T* c) {
  if constexpr (std::is_same_v<T, float>) {
    // The bias goes in first, and the product on top of it.
    if (bias) {
      threads_.parallel_for(p.m, 16, [&](Index begin, Index end) {
        for (Index i = begin; i < end; ++i) {
          if (p.accumulate) {
            const T one = 1;
            kernels<T>().weighted_sum(&bias, &one, 1, c + i * p.line_c, p.n, true);
          } else {
            std::copy_n(bias, p.n, c + i * p.line_c);
          }
        }
      });
    }
    cpu::Product onto = p;
    onto.accumulate = p.accumulate || bias;
    dnnl_.matmul(onto, a, b, c);
  } else {
    threads_.parallel_for(
        p.m, 1, [&](Index begin, Index end) { kernels<T>().matmul(p, a, b, bias, c, begin, end); });
  }
}

template <class T, class To>
void CpuBackend::low_matmul(const cpu::Product& p, const T* a, const T* b, const float* bias,
                            To* c) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (bf16_products_) return dnnl_.matmul(p, a, b, bias, c);
  }
  const auto wide_a = widened(a, p.width_a(), p.lines_a(), p.line_a),
             wide_b = widened(b, p.width_b(), p.lines_b(), p.line_b);
  cpu::Product wide = p.dense();
  if constexpr (std::is_same_v<To, float>) {
    wide.line_c = p.line_c;
    matmul_of<float>(wide, wide_a.data(), wide_b.data(), bias, c);
  } else {
    const auto wide_c = p.accumulate ? widened(c, p.n, p.m, p.line_c)
                                     : cpu::Workspace<float>(*allocator_, p.m * p.n);
    matmul_of<float>(wide, wide_a.data(), wide_b.data(), bias, wide_c.data());
    narrow(wide_c.data(), c, p.n, p.m, p.line_c);
  }
}

void CpuBackend::issue(const Matmul& args) {
  if (args.in_steps()) return matmul_in_steps(*this, args);
  if (args.bias && is_low_precision(args.bias.dtype())) {
    Matmul wide = args;
    wide.bias = Tensor(*this, args.bias.shape(), DType::kFloat32);
    cast({.x = args.bias, .y = wide.bias});
    return issue(wide);
  }
  for (const Matmul& part : batches_of(args)) {
    const FactorLayout layout_a = factor_layout(part.a), layout_b = factor_layout(part.b);
    const cpu::Product p{.m = part.c.shape()[1],
                         .n = part.c.shape()[2],
                         .k = part.a.shape()[2],
                         .transpose_a = layout_a.transposed,
                         .transpose_b = layout_b.transposed,
                         .accumulate = part.accumulate,
                         .line_a = layout_a.line,
                         .line_b = layout_b.line,
                         .line_c = factor_layout(part.c).line};
    floating(part.a.tensor(), [&](auto type) {
      using T = decltype(type);
      const auto* bias = cpu::optional<Compute<T>>(part.bias);
      // One after another: oneDNN's batched primitive is slower than its plain product.
      for (Index i = 0; i < part.c.shape()[0]; ++i) {
        const T* a = part.a.data<T>() + i * part.a.stride(0);
        const T* b = part.b.data<T>() + i * part.b.stride(0);
        const Index to = i * part.c.stride(0);
        if constexpr (!cpu::kIsLow<T>) {
          matmul_of<T>(p, a, b, bias, part.c.data<T>() + to);
        } else if (part.c.dtype() == DType::kFloat32) {
          low_matmul(p, a, b, bias, part.c.data<float>() + to);
        } else {
          low_matmul(p, a, b, bias, part.c.data<T>() + to);
        }
      }
    });
  }
  if (args.relu) map({MapFunction::kRelu, args.c.whole(), args.c.whole()});
}

}  // namespace starling
