#include "kernels/cpu/kernels.h"

// 3×3 convolutions with stride 1 and padding 1 by minimal filtering, F(4×4, 3×3) (Lavin and Gray
// 2015, arXiv 1509.09308). A tile of 4×4 outputs is a polynomial product, taken at 6×6 points: each
// needs one multiplication for every pair of channels, 36 in place of 144. The points are 0, ±5/8,
// ±3/2 and infinity, whose error is smaller than that of whole numbers (Barabasz et al. 2020, arXiv
// 1803.10986). In memory each point is a plane of its own, so that a plane is a matrix product.
//
// Each sum over channels, or over tiles for the gradient of the filters, is added up in one order
// whatever the blocks: no bit depends on how the work is cut.

namespace starling::cpu::STARLING_ISA {
namespace {

#if defined(__AVX2__)

#if defined(__AVX512F__)
constexpr int kLanes = 16, kRows = 24, kGradientRows = 16;
#else
// Rows of a tile of the product: 12 of the 16 registers gather sums. Filters' gradients have rows
// by the sixteen.
constexpr int kLanes = 8, kRows = 6, kGradientRows = 4;
#endif
constexpr int kVectors = kWinogradPanel / kLanes;
constexpr int kOutputs = 4, kTaps = 3, kPoints = 6;

typedef float Vector __attribute__((vector_size(kLanes * 4)));
typedef float Unaligned __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
static inline Vector load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }
static inline void store(float* to, Vector value) { *reinterpret_cast<Unaligned*>(to) = value; }

/// a[i, d] lies at a + i · row + d · step, b[d] is a row of a panel, c[i] lies at c + i · line.
struct Factors {
  const float* a;
  Index row, step;
  const float* b;
  Index depth;
  float* c;
  Index line;
  bool add;
};

/// c[i, panel] (+)= Σ_d a[i, d] · b[d, panel] for count rows.
template <int count>
static inline void multiply_rows(const Factors& f) {
  Vector sum[count][kVectors];
#pragma GCC unroll 24
  for (int i = 0; i < count; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v)
      sum[i][v] = f.add ? load(f.c + i * f.line + v * kLanes) : Vector{};
  }
  const float* __restrict b = f.b;
  const float* __restrict a = f.a;
#pragma GCC unroll 4
  for (Index d = 0; d < f.depth; ++d) {
    Vector row[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) row[v] = load(b + d * kWinogradPanel + v * kLanes);
#pragma GCC unroll 24
    for (int i = 0; i < count; ++i) {
      const float value = a[d * f.step + i * f.row];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[i][v] += value * row[v];
    }
  }
#pragma GCC unroll 24
  for (int i = 0; i < count; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) store(f.c + i * f.line + v * kLanes, sum[i][v]);
  }
}

/// The same for any number of rows.
template <int count>
static void multiply_panel(Factors f, Index rows) {
  for (; rows >= count; rows -= count) {
    multiply_rows<count>(f);
    f.a += count * f.row;
    f.c += count * f.line;
  }
  if constexpr (count > 1) {
    if (rows > 0) multiply_panel<count / 2>(f, rows);
  }
}

/// The same for all panels, which are `panel` apart in b.
template <int count>
static void multiply(Factors f, Index rows, Index columns, Index panel) {
  for (Index j = 0; j < columns; j += kWinogradPanel) {
    multiply_panel<count>(f, rows);
    f.b += panel;
    f.c += kWinogradPanel;
  }
}

// The transforms in one dimension. Numbers are `step` vectors apart, results `stride`.
constexpr float kA = 5.0f / 8, kB = 3.0f / 2, kA2 = kA * kA, kB2 = kB * kB;
// Lagrange's denominators of 0, ±a, ±b
constexpr float kAt0 = 1 / (kA2 * kB2), kAtA = 1 / (2 * kA2 * (kA2 - kB2)),
                kAtB = 1 / (2 * kB2 * (kB2 - kA2));

static inline void sum_and_difference(Vector even, Vector odd, Vector* to, int stride) {
  to[0] = even + odd;
  to[stride] = even - odd;
}
/// 6 inputs at the points.
static inline void transform_input(const Vector* x, int step, Vector* to, int stride) {
  const Vector x1 = x[step], x2 = x[2 * step], x3 = x[3 * step], x4 = x[4 * step];
  to[0] = kA2 * kB2 * x[0] - (kA2 + kB2) * x2 + x4;
  sum_and_difference(x4 - kB2 * x2, kA * (x3 - kB2 * x1), to + stride, stride);
  sum_and_difference(x4 - kA2 * x2, kB * (x3 - kA2 * x1), to + 3 * stride, stride);
  to[5 * stride] = kA2 * kB2 * x1 - (kA2 + kB2) * x3 + x[5 * step];
}
/// 3 taps at the points.
static inline void transform_filter(const Vector* w, int step, Vector* to, int stride) {
  to[0] = kAt0 * w[0];
  sum_and_difference(kAtA * (w[0] + kA2 * w[2 * step]), kAtA * kA * w[step], to + stride, stride);
  sum_and_difference(kAtB * (w[0] + kB2 * w[2 * step]), kAtB * kB * w[step], to + 3 * stride,
                     stride);
  to[5 * stride] = w[2 * step];
}
/// 4 outputs of the products at the points.
static inline void transform_output(const Vector* m, int step, Vector* to, int stride) {
  const Vector a = m[step] + m[2 * step], b = m[3 * step] + m[4 * step],
               odd_a = kA * (m[step] - m[2 * step]), odd_b = kB * (m[3 * step] - m[4 * step]);
  to[0] = m[0] + a + b;
  to[stride] = odd_a + odd_b;
  to[2 * stride] = kA2 * a + kB2 * b;
  to[3 * stride] = kA2 * odd_a + kB2 * odd_b + m[5 * step];
}
/// The adjoint of transform_output: 4 gradients at the points.
static inline void transform_gradient(const Vector* y, int step, Vector* to, int stride) {
  to[0] = y[0];
  sum_and_difference(y[0] + kA2 * y[2 * step], kA * (y[step] + kA2 * y[3 * step]), to + stride,
                     stride);
  sum_and_difference(y[0] + kB2 * y[2 * step], kB * (y[step] + kB2 * y[3 * step]), to + 3 * stride,
                     stride);
  to[5 * stride] = y[3 * step];
}
/// The adjoint of transform_filter: the gradients of 3 taps.
static inline void transform_taps(const Vector* u, int step, Vector* to, int stride) {
  const Vector a = kAtA * (u[step] + u[2 * step]), b = kAtB * (u[3 * step] + u[4 * step]);
  to[0] = kAt0 * u[0] + a + b;
  to[stride] = kAtA * kA * (u[step] - u[2 * step]) + kAtB * kB * (u[3 * step] - u[4 * step]);
  to[2 * stride] = kA2 * a + kB2 * b + u[5 * step];
}

using Transform = void (*)(const Vector*, int, Vector*, int);
/// The transform in two dimensions of take(i), i < kFrom², to put(i, result), i < kTo².
template <Transform kTransform, int kFrom, int kTo, class Take, class Put>
static inline void transform(Take take, Put put) {
  Vector half[kFrom * kTo];
  for (int i = 0; i < kFrom; ++i) {
    Vector row[kFrom];
#pragma GCC unroll 6
    for (int j = 0; j < kFrom; ++j) row[j] = take(i * kFrom + j);
    kTransform(row, 1, half + i * kTo, 1);
  }
  for (int j = 0; j < kTo; ++j) {
    Vector column[kTo];
    kTransform(half + j, kTo, column, 1);
#pragma GCC unroll 6
    for (int i = 0; i < kTo; ++i) put(i * kTo + j, column[i]);
  }
}

/// The upper left output of a tile, and of its image.
struct Corner {
  Index image, top, left;
  Corner(const Geometry& g, Index tile) {
    const Index across = winograd_across(g), of_image = across * winograd_down(g);
    image = tile / of_image;
    top = tile % of_image / across * kOutputs;
    left = tile % of_image % across * kOutputs;
  }
};

/// Tiles [first, last) of x[N,H,W,channels], its channels [at, at + count), at the points. A tile
/// is kSide pixels wide from kBefore before its corner on; what lies outside the image is 0. Tile
/// t's channel c goes to to + point · plane + (t - from) · line + c / panel · stride + c % panel.
template <Transform kTransform, int kSide, int kBefore>
static void transform_tiles(const Geometry& g, Index channels, Index at, Index count,
                            const float* x, Index from, Index first, Index last, float* to,
                            Index plane, Index line, Index stride) {
  for (Index tile = first; tile < last; ++tile) {
    const Corner corner(g, tile);
    const float* pixels[kSide * kSide];
    for (int i = 0; i < kSide; ++i) {
      for (int j = 0; j < kSide; ++j) {
        const Index h = corner.top - kBefore + i, w = corner.left - kBefore + j;
        const bool inside = h >= 0 && h < g.height && w >= 0 && w < g.width;
        pixels[i * kSide + j] =
            inside ? x + ((corner.image * g.height + h) * g.width + w) * channels + at : nullptr;
      }
    }
    for (Index c = 0; c < count; c += kLanes) {
      float* out = to + (tile - from) * line + c / kWinogradPanel * stride + c % kWinogradPanel;
      transform<kTransform, kSide, kPoints>(
          [&](int i) { return pixels[i] ? load(pixels[i] + c) : Vector{}; },
          [&](int p, Vector value) { store(out + p * plane, value); });
    }
  }
}

static void filters(const WinogradPart& part, const float* weight, Index first, Index last,
                    float* u) {
  const Geometry& g = part.geometry;
  const Index depth = part.inputs(), taps = kTaps * kTaps, plane = part.filters_plane();
  for (Index panel = first; panel < last; ++panel) {
    for (Index d = 0; d < depth; ++d) {
      for (int lane = 0; lane < kWinogradPanel; lane += kLanes) {
        const Index output = part.first + panel * kWinogradPanel + lane;
        float* to = u + (panel * depth + d) * kWinogradPanel + lane;
        transform<transform_filter, kTaps, kPoints>(
            [&](int k) {
              // Turned by half a circle
              if (part.backward)
                return load(weight + (d * taps + taps - 1 - k) * g.channels + output);
              Vector w = {};
#pragma GCC unroll 16
              for (int i = 0; i < kLanes; ++i)
                w[i] = weight[((output + i) * taps + k) * g.channels + d];
              return w;
            },
            [&](int p, Vector value) { store(to + p * plane, value); });
      }
    }
  }
}

static void convolve(const WinogradPart& part, const float* x, const float* u, const float* bias,
                     float* y, Index first, Index last, float* scratch) {
  const Geometry& g = part.geometry;
  const Index depth = part.inputs(), channels = part.backward ? g.channels : g.out_channels,
              in = part.inputs_plane(), out = part.outputs_plane();
  float* products = scratch + kWinogradPoints * in;
  transform_tiles<transform_input, kPoints, 1>(g, depth, 0, depth, x, first, first, last, scratch,
                                               in, depth, kWinogradPanel);
  for (Index p = 0; p < kWinogradPoints; ++p) {
    multiply<kRows>({.a = scratch + p * in,
                     .row = depth,
                     .step = 1,
                     .b = u + p * part.filters_plane(),
                     .depth = depth,
                     .c = products + p * out,
                     .line = part.outputs,
                     .add = false},
                    last - first, part.outputs, depth * kWinogradPanel);
  }
  for (Index tile = first; tile < last; ++tile) {
    const Corner corner(g, tile);
    const Index down = g.height - corner.top, across = g.width - corner.left;
    const Index pixel = (corner.image * g.height + corner.top) * g.width + corner.left;
    for (Index c = 0; c < part.outputs; c += kLanes) {
      const float* from = products + (tile - first) * part.outputs + c;
      const Vector shift = bias ? load(bias + part.first + c) : Vector{};
      float* to = y + pixel * channels + part.first + c;
      transform<transform_output, kPoints, kOutputs>(
          [&](int p) { return load(from + p * out); },
          [&](int i, Vector value) {
            if (i / kOutputs < down && i % kOutputs < across)
              store(to + (i / kOutputs * g.width + i % kOutputs) * channels, value + shift);
          });
    }
  }
}

static void spread(const WinogradPart& part, const float* x, const float* dy, Index from,
                   Index first, Index last, float* v, float* z) {
  const Geometry& g = part.geometry;
  transform_tiles<transform_input, kPoints, 1>(g, g.channels, 0, g.channels, x, from, first, last,
                                               v, part.inputs_plane(), kWinogradPanel,
                                               part.tiles * kWinogradPanel);
  transform_tiles<transform_gradient, kOutputs, 0>(g, g.out_channels, part.first, part.outputs, dy,
                                                   from, first, last, z, part.outputs_plane(),
                                                   part.outputs, kWinogradPanel);
}

static void products(const WinogradPart& part, const float* v, const float* z, Index tiles,
                     bool add, Index first, Index last, float* du) {
  const Index inputs = part.inputs();
  for (Index p = first; p < last; ++p) {
    multiply<kGradientRows>({.a = z + p * part.outputs_plane(),
                             .row = 1,
                             .step = part.outputs,
                             .b = v + p * part.inputs_plane(),
                             .depth = tiles,
                             .c = du + p * part.filters_plane(),
                             .line = inputs,
                             .add = add},
                            part.outputs, inputs, part.tiles * kWinogradPanel);
  }
}

static void taps(const WinogradPart& part, const float* du, bool accumulate, Index first,
                 Index last, float* dweight) {
  const Index inputs = part.inputs(), plane = part.filters_plane();
  for (Index o = first; o < last; ++o) {
    for (Index c = 0; c < inputs; c += kLanes) {
      transform<transform_taps, kPoints, kTaps>(
          [&](int p) { return load(du + p * plane + o * inputs + c); },
          [&](int k, Vector value) {
            float* to = dweight + ((part.first + o) * kTaps * kTaps + k) * inputs + c;
            store(to, accumulate ? load(to) + value : value);
          });
    }
  }
}

#endif

}  // namespace

void add_winograd([[maybe_unused]] AllKernels& all) {
#if defined(__AVX2__)
  all.fp32.winograd = {filters, convolve, spread, products, taps};
#endif
}

}  // namespace starling::cpu::STARLING_ISA
