#include "kernels/cpu/window_isa.h"

// Convolution and matrix product by plain loops in fp64: for gradient checks and parity, where
// oneDNN has nothing to offer.

namespace starling::cpu::STARLING_ISA {
namespace {

STARLING_HD double dot(const double* __restrict a, const double* __restrict b, Index n) {
  constexpr Index kLanes = 16;
  double lane[kLanes] = {};
  Index i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (Index j = 0; j < kLanes; ++j) lane[j] += a[i + j] * b[i + j];
  }
  double sum = 0.0;
  for (Index j = 0; j < kLanes; ++j) sum += lane[j];
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

STARLING_HD void add_scaled(double factor, const double* __restrict from, double* __restrict to,
                            Index n) {
  STARLING_LOOP for (Index i = 0; i < n; ++i) to[i] += factor * from[i];
}

/// Of convolutions of every channel alone, whose weights are `step` apart.
STARLING_HD void add_products(const double* __restrict from, const double* __restrict weight,
                              Index step, double* __restrict to, Index n) {
  STARLING_LOOP for (Index i = 0; i < n; ++i) to[i] += from[i] * weight[i * step];
}

static void conv_forward(const Geometry& g, const double* x, const double* weight,
                         const double* bias, double* y, Index first, Index last) {
  const Index in_group = g.channels / g.groups, out_group = g.out_channels / g.groups,
              taps = g.kernel_h * g.kernel_w;
  for (Index row = first; row < last; ++row) {
    const Index n = row / g.out_height, p = row % g.out_height;
    for (Index q = 0; q < g.out_width; ++q) {
      double* out = y + (row * g.out_width + q) * g.out_channels;
      for (Index o = 0; o < g.out_channels; ++o) out[o] = bias ? bias[o] : 0.0;
      for_window(
          g, p, q, [&](Index tap, Index at) __attribute__((always_inline)) {
            const double* pixel = x + (n * g.height * g.width + at) * g.channels;
            if (is_depthwise(g)) return add_products(pixel, weight + tap, taps, out, g.channels);
            for (Index o = 0; o < g.out_channels; ++o) {
              out[o] += dot(pixel + o / out_group * in_group, weight + (o * taps + tap) * in_group,
                            in_group);
            }
          });
    }
  }
}

static void conv_backward_data(const Geometry& g, const double* dy, const double* weight,
                               double* dx, Index first, Index last) {
  const Index in_group = g.channels / g.groups, out_group = g.out_channels / g.groups,
              taps = g.kernel_h * g.kernel_w;
  for (Index row = first; row < last; ++row) {
    const Index n = row / g.height, h = row % g.height;
    for (Index w = 0; w < g.width; ++w) {
      double* out = dx + (row * g.width + w) * g.channels;
      for (Index c = 0; c < g.channels; ++c) out[c] = 0.0;
      for (Index kh = 0; kh < g.kernel_h; ++kh) {
        const Index ph = h + g.pad_h - kh * g.dilation_h;
        if (ph < 0 || ph % g.stride_h != 0 || ph / g.stride_h >= g.out_height) continue;
        for (Index kw = 0; kw < g.kernel_w; ++kw) {
          const Index qw = w + g.pad_w - kw * g.dilation_w;
          if (qw < 0 || qw % g.stride_w != 0 || qw / g.stride_w >= g.out_width) continue;
          const double* gradient =
              dy + ((n * g.out_height + ph / g.stride_h) * g.out_width + qw / g.stride_w) *
                       g.out_channels;
          if (is_depthwise(g)) {
            add_products(gradient, weight + kh * g.kernel_w + kw, taps, out, g.channels);
            continue;
          }
          for (Index o = 0; o < g.out_channels; ++o) {
            add_scaled(gradient[o], weight + (o * taps + kh * g.kernel_w + kw) * in_group,
                       out + o / out_group * in_group, in_group);
          }
        }
      }
    }
  }
}

static void conv_backward_weights(const Geometry& g, const double* x, const double* dy,
                                  double* dweight, Index first, Index last, bool accumulate) {
  const Index in_group = g.channels / g.groups, out_group = g.out_channels / g.groups,
              taps = g.kernel_h * g.kernel_w;
  if (!accumulate) {
    for (Index i = first * taps * in_group; i < last * taps * in_group; ++i) dweight[i] = 0.0;
  }
  for (Index row = 0; row < g.images * g.out_height; ++row) {
    const Index n = row / g.out_height, p = row % g.out_height;
    for (Index q = 0; q < g.out_width; ++q) {
      const double* gradient = dy + (row * g.out_width + q) * g.out_channels;
      for_window(
          g, p, q, [&](Index tap, Index at) __attribute__((always_inline)) {
            const double* pixel = x + (n * g.height * g.width + at) * g.channels;
            for (Index o = first; o < last; ++o) {
              add_scaled(gradient[o], pixel + o / out_group * in_group,
                         dweight + (o * taps + tap) * in_group, in_group);
            }
          });
    }
  }
}

static void matmul(const Product& p, const double* a, const double* b, const double* bias,
                   double* c, Index first, Index last) {
  // Piece of the inner dimension: a piece of b's rows or columns is used again for the next row of
  // c from cache
  constexpr Index kPiece = 256;
  for (Index i = first; i < last; ++i) {
    double* out = c + i * p.line_c;
    for (Index j = 0; j < p.n; ++j) out[j] = (p.accumulate ? out[j] : 0.0) + (bias ? bias[j] : 0.0);
  }
  for (Index begin = 0; begin < p.k; begin += kPiece) {
    const Index count = p.k - begin < kPiece ? p.k - begin : kPiece;
    for (Index i = first; i < last; ++i) {
      double row[kPiece];
      for (Index l = 0; l < count; ++l)
        row[l] = p.transpose_a ? a[(begin + l) * p.line_a + i] : a[i * p.line_a + begin + l];
      double* __restrict out = c + i * p.line_c;
      if (p.transpose_b) {
        for (Index j = 0; j < p.n; ++j) out[j] += dot(row, b + j * p.line_b + begin, count);
      } else {
        for (Index l = 0; l < count; ++l) add_scaled(row[l], b + (begin + l) * p.line_b, out, p.n);
      }
    }
  }
}

}  // namespace

void add_plain(AllKernels& all) {
  all.fp64.conv_forward = conv_forward;
  all.fp64.conv_backward_data = conv_backward_data;
  all.fp64.conv_backward_weights = conv_backward_weights;
  all.fp64.matmul = matmul;
}

}  // namespace starling::cpu::STARLING_ISA
