#include <algorithm>

#include "kernels/cpu/cpu_backend_detail.h"

// Convolutions, matrix products and their bias gradients.
namespace starling {

using cpu::Index;

namespace cpu {

Geometry geometry(const Shape& x, const Shape& y, const Window2d& window, const char* operation) {
  require(x.rank() == 4 && y.rank() == 4, "cpu", "{}: {} and {} must have four dimensions", operation, x.text(), y.text());
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
  const bool valid =
      g.kernel_h > 0 && g.kernel_w > 0 && g.stride_h > 0 && g.stride_w > 0 && g.dilation_h > 0 && g.dilation_w > 0 && g.groups > 0;
  require(valid && y[0] == x[0] && y[1] == window.output(0, x[1]) && y[2] == window.output(1, x[2]) && y[1] > 0 && y[2] > 0 &&
              x[3] % g.groups == 0 && y[3] % g.groups == 0,
          "cpu", "{}: {} does not become {} under a window of {}×{}, stride {}, padding {}, dilation {}, {} groups", operation, x.text(),
          y.text(), g.kernel_h, g.kernel_w, g.stride_h, g.pad_h, g.dilation_h, g.groups);
  return g;
}

namespace {
/// Stride 1, padding 1, 3×3 to 16 channels from 8 to 32 (more inputs' weights would leave the first cache), on images of some width.
bool suits_conv16(const Geometry& g) {
  return g.out_channels == 16 && g.groups == 1 && g.kernel_h == 3 && g.kernel_w == 3 && g.stride_h == 1 && g.stride_w == 1 &&
         g.pad_h == 1 && g.pad_w == 1 && g.dilation_h == 1 && g.dilation_w == 1 && g.channels >= 8 && g.channels <= 32 && g.width >= 8;
}
Index weight_elements(const Geometry& g) { return g.out_channels * g.kernel_h * g.kernel_w * (g.channels / g.groups); }
}  // namespace

}  // namespace cpu

void CpuBackend::conv2d_forward(const Conv2dForward& args) {
  constexpr const char* kName = "conv2d forward";
  const cpu::Geometry g = cpu::geometry(args.x.shape(), args.y.shape(), args.window, kName);
  floating(args.x, kName, [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    const T* weight = cpu::numbers<T>(args.weight, cpu::weight_elements(g), kName, "weight");
    const T* bias = cpu::optional_numbers<T>(args.bias, g.out_channels, kName, "bias");
    T* y = args.y.data<T>();
    if constexpr (std::is_same_v<T, float>) {
      const cpu::Kernels<float>& k = kernels<float>();
      if (k.conv16 && !bias && cpu::suits_conv16(g)) {
        const Index scratch = 3 * (g.width + 2) * g.channels;
        const cpu::Workspace<float> packed(*allocator_, cpu::weight_elements(g)), lines(*allocator_, threads_.count() * scratch);
        k.conv16_pack(weight, packed.data(), g.channels);
        threads_.parallel_parts(g.images, 1, [&](Index part, Index begin, Index end) {
          k.conv16(g, x, packed.data(), y, begin, end, lines.data() + part * scratch);
        });
      } else {
        dnnl_.conv_forward(g, x, weight, bias, y);
      }
    } else {
      threads_.parallel_for(g.images * g.out_height, 1,
                            [&](Index begin, Index end) { kernels<T>().conv_forward(g, x, weight, bias, y, begin, end); });
    }
  });
}

void CpuBackend::conv2d_backward_data(const Conv2dBackwardData& args) {
  constexpr const char* kName = "conv2d backward of the data";
  const cpu::Geometry g = cpu::geometry(args.dx.shape(), args.dy.shape(), args.window, kName);
  floating(args.dy, kName, [&](auto type) {
    using T = decltype(type);
    const T* dy = args.dy.data<T>();
    const T* weight = cpu::numbers<T>(args.weight, cpu::weight_elements(g), kName, "weight");
    T* dx = args.dx.data<T>();
    if constexpr (std::is_same_v<T, float>) {
      dnnl_.conv_backward_data(g, dy, weight, dx);
    } else {
      threads_.parallel_for(g.images * g.height, 1,
                            [&](Index begin, Index end) { kernels<T>().conv_backward_data(g, dy, weight, dx, begin, end); });
    }
  });
}

void CpuBackend::conv2d_backward_weights(const Conv2dBackwardWeights& args) {
  constexpr const char* kName = "conv2d backward of the weights";
  const cpu::Geometry g = cpu::geometry(args.x.shape(), args.dy.shape(), args.window, kName);
  floating(args.x, kName, [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    const T* dy = args.dy.data<T>();
    T* dweight = cpu::numbers<T>(args.dweight, cpu::weight_elements(g), kName, "dweight");
    if constexpr (std::is_same_v<T, float>) {
      dnnl_.conv_backward_weights(g, x, dy, dweight, args.accumulate);
    } else {
      threads_.parallel_for(g.out_channels, 1, [&](Index begin, Index end) {
        kernels<T>().conv_backward_weights(g, x, dy, dweight, begin, end, args.accumulate);
      });
    }
    if (args.dbias) {
      column_sums(dy, g.images * g.out_height * g.out_width, g.out_channels, cpu::numbers<T>(args.dbias, g.out_channels, kName, "dbias"),
                  args.accumulate);
    }
  });
}

void CpuBackend::matmul(const Matmul& args) {
  constexpr const char* kName = "matmul";
  require(args.a && args.b && args.c && args.a.shape().rank() == 2 && args.b.shape().rank() == 2 && args.c.shape().rank() == 2, "cpu",
          "matmul: a, b and c must be matrices");
  const Index m = args.c.shape()[0], n = args.c.shape()[1], k = args.a.shape()[args.transpose_a ? 0 : 1];
  require(args.a.shape()[args.transpose_a ? 1 : 0] == m && args.b.shape()[args.transpose_b ? 1 : 0] == k &&
              args.b.shape()[args.transpose_b ? 0 : 1] == n,
          "cpu", "matmul: {}{} by {}{} is not {}", args.a.shape().text(), args.transpose_a ? " transposed" : "", args.b.shape().text(),
          args.transpose_b ? " transposed" : "", args.c.shape().text());
  floating(args.a, kName, [&](auto type) {
    using T = decltype(type);
    const T* a = args.a.data<T>();
    const T* b = args.b.data<T>();
    const T* bias = cpu::optional_numbers<T>(args.bias, n, kName, "bias");
    T* c = args.c.data<T>();
    if constexpr (std::is_same_v<T, float>) {
      // The bias goes in first, and the product on top of it.
      if (bias) {
        threads_.parallel_for(m, 16, [&](Index begin, Index end) {
          for (Index i = begin; i < end; ++i) {
            if (args.accumulate) {
              kernels<T>().add(c + i * n, bias, c + i * n, n);
            } else {
              std::copy_n(bias, n, c + i * n);
            }
          }
        });
      }
      dnnl_.matmul(a, b, c, m, n, k, args.transpose_a, args.transpose_b, args.accumulate || bias);
    } else {
      threads_.parallel_for(m, 1, [&](Index begin, Index end) {
        kernels<T>().matmul(a, b, bias, c, m, n, k, args.transpose_a, args.transpose_b, args.accumulate, begin, end);
      });
    }
  });
}

template <class T>
void CpuBackend::column_sums(const T* x, Index rows, Index channels, T* y, bool accumulate) {
  const Index block = cpu::block_rows(channels), width = cpu::fold_width(channels), parts = threads_.count();
  const cpu::Workspace<double> sums(*allocator_, parts * channels);
  const cpu::Workspace<T> scratch(*allocator_, parts * width);
  std::fill_n(sums.data(), parts * channels, 0.0);
  threads_.parallel_parts(rows, block, [&](Index part, Index begin, Index end) {
    for (Index r = begin; r < end; r += block) {
      kernels<T>().column_sums(x + r * channels, std::min(block, end - r), channels, scratch.data() + part * width,
                               sums.data() + part * channels);
    }
  });
  for (Index c = 0; c < channels; ++c) {
    double sum = 0.0;
    for (Index part = 0; part < parts; ++part) sum += sums.data()[part * channels + c];
    y[c] = static_cast<T>(accumulate ? static_cast<double>(y[c]) + sum : sum);
  }
}

void CpuBackend::sum_rows(const SumRows& args) {
  const cpu::Matrix x = cpu::matrix_of(args.x, "sum_rows");
  floating(args.x, "sum_rows", [&](auto type) {
    using T = decltype(type);
    column_sums(args.x.data<T>(), x.rows, x.channels, cpu::numbers<T>(args.y, x.channels, "sum_rows", "y"), args.accumulate);
  });
}

}  // namespace starling
