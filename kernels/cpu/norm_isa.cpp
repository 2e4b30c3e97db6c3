#include "kernels/cpu/kernels.h"

// Batch and layer normalisation. Memory decides their speed: every loop runs over long rows (fold_rows short ones at once), four rows at
// a time, so that per-channel values are loaded once for four and the loops vectorise over contiguous memory.

namespace starling::cpu::STARLING_ISA {
namespace {

#define STARLING_LOOP _Pragma("GCC ivdep")

template <class T>
static void moments(const T* x, Index rows, Index channels, T* scratch, double* mean, double* m2) {
  const Index fold = fold_rows(channels), width = fold * channels, lines = rows / fold;
  T* __restrict shift = scratch;
  T* __restrict s1 = scratch + width;
  T* __restrict s2 = scratch + 2 * width;
  for (Index c = 0; c < channels; ++c) mean[c] = m2[c] = 0.0;
  if (lines > 0) {
    // Deviations from a rough mean (of the first lines) keep the sums small: no cancellation even where the mean is large.
    const Index first = lines < 4 ? lines : 4;
    STARLING_LOOP for (Index v = 0; v < width; ++v) shift[v] = x[v];
    for (Index r = 1; r < first; ++r) {
      STARLING_LOOP for (Index v = 0; v < width; ++v) shift[v] += x[r * width + v];
    }
    const T share = T(1) / static_cast<T>(first);
    STARLING_LOOP for (Index v = 0; v < width; ++v) {
      shift[v] *= share;
      s1[v] = s2[v] = T(0);
    }
    Index r = 0;
    for (; r + 4 <= lines; r += 4) {
      const T* __restrict row = x + r * width;
      STARLING_LOOP for (Index v = 0; v < width; ++v) {
        const T s = shift[v];
        const T d0 = row[v] - s, d1 = row[width + v] - s, d2 = row[2 * width + v] - s, d3 = row[3 * width + v] - s;
        s1[v] += (d0 + d1) + (d2 + d3);
        s2[v] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3);
      }
    }
    for (; r < lines; ++r) {
      const T* __restrict row = x + r * width;
      STARLING_LOOP for (Index v = 0; v < width; ++v) {
        const T d = row[v] - shift[v];
        s1[v] += d;
        s2[v] += d * d;
      }
    }
    const double n = static_cast<double>(lines), per_line = 1.0 / n, per_fold = 1.0 / static_cast<double>(fold);
    for (Index j = 0; j < fold; ++j) {
      for (Index c = 0; c < channels; ++c) {
        mean[c] += static_cast<double>(shift[j * channels + c]) + static_cast<double>(s1[j * channels + c]) * per_line;
      }
    }
    for (Index c = 0; c < channels; ++c) mean[c] *= per_fold;
    for (Index j = 0; j < fold; ++j) {
      for (Index c = 0; c < channels; ++c) {
        const Index v = j * channels + c;
        const double sum = static_cast<double>(s1[v]);
        const double difference = static_cast<double>(shift[v]) + sum * per_line - mean[c];
        m2[c] += static_cast<double>(s2[v]) - sum * sum * per_line + n * difference * difference;
      }
    }
  }
  for (Index r = lines * fold; r < rows; ++r) {  // Welford's update, for the rows that do not fill a line
    const double count = 1.0 / static_cast<double>(r + 1);
    for (Index c = 0; c < channels; ++c) {
      const double value = static_cast<double>(x[r * channels + c]), delta = value - mean[c];
      mean[c] += delta * count;
      m2[c] += delta * (value - mean[c]);
    }
  }
}

// A large result will have left the caches before it is read again, and the memory it goes to is not in them: writing past the caches
// saves reading that memory first, a third of the traffic. Lines are computed into a buffer in the first cache and streamed from there.
constexpr Index kStreamBuffer = 4096;          // elements
constexpr Index kStreamFrom = Index{4} << 20;  // bytes; smaller results may still be in a cache when they are read

/// Whether a result of `elements` that long lines of `width` make up should be, and can be, streamed to `to`.
template <class T>
static inline bool streams(const T* to, Index elements, Index width) {
#if defined(__AVX2__)
  return elements * static_cast<Index>(sizeof(T)) >= kStreamFrom && width <= kStreamBuffer &&
         reinterpret_cast<unsigned long>(to) % 64 == 0 && width * static_cast<Index>(sizeof(T)) % 64 == 0;
#else
  (void)to, (void)elements, (void)width;
  return false;
#endif
}

/// Copies whole cache lines past the caches.
template <class T>
static inline void stream(T* to, const T* from, Index n) {
#if defined(__AVX512F__)
  typedef float Vector __attribute__((vector_size(64), may_alias));
  for (Index i = 0; i < n * static_cast<Index>(sizeof(T)) / 64; ++i) {
    __builtin_ia32_movntps512(reinterpret_cast<float*>(to) + i * 16, reinterpret_cast<const Vector*>(from)[i]);
  }
#elif defined(__AVX2__)
  typedef float Vector __attribute__((vector_size(32), may_alias));
  for (Index i = 0; i < n * static_cast<Index>(sizeof(T)) / 32; ++i) {
    __builtin_ia32_movntps256(reinterpret_cast<float*>(to) + i * 8, reinterpret_cast<const Vector*>(from)[i]);
  }
#else
  for (Index i = 0; i < n; ++i) to[i] = from[i];
#endif
}

/// Other threads may read streamed memory after this.
static inline void end_stream() {
#if defined(__AVX2__)
  __builtin_ia32_sfence();
#endif
}

template <class T, bool kResidual, bool kRelu>
static inline void affine_lines(const T* __restrict x, const T* __restrict residual, T* __restrict y, Index lines, Index stride,
                                Index width, const T* __restrict scale, const T* __restrict shift) {
  Index r = 0;
  for (; r + 4 <= lines; r += 4) {
    const Index o = r * stride;
    STARLING_LOOP for (Index v = 0; v < width; ++v) {
      const T a = scale[v], b = shift[v];
      T y0 = x[o + v] * a + b, y1 = x[o + stride + v] * a + b, y2 = x[o + 2 * stride + v] * a + b, y3 = x[o + 3 * stride + v] * a + b;
      if constexpr (kResidual) {
        y0 += residual[o + v];
        y1 += residual[o + stride + v];
        y2 += residual[o + 2 * stride + v];
        y3 += residual[o + 3 * stride + v];
      }
      if constexpr (kRelu) {  // this order of operands keeps NaN
        y0 = y0 < T(0) ? T(0) : y0;
        y1 = y1 < T(0) ? T(0) : y1;
        y2 = y2 < T(0) ? T(0) : y2;
        y3 = y3 < T(0) ? T(0) : y3;
      }
      y[o + v] = y0;
      y[o + stride + v] = y1;
      y[o + 2 * stride + v] = y2;
      y[o + 3 * stride + v] = y3;
    }
  }
  for (; r < lines; ++r) {
    const Index o = r * stride;
    STARLING_LOOP for (Index v = 0; v < width; ++v) {
      T value = x[o + v] * scale[v] + shift[v];
      if constexpr (kResidual) value += residual[o + v];
      if constexpr (kRelu) value = value < T(0) ? T(0) : value;
      y[o + v] = value;
    }
  }
}

template <class T>
static void affine(const T* x, const T* residual, T* y, Index rows, Index channels, const T* scale, const T* shift, bool relu) {
  const Index fold = fold_rows(channels), width = fold * channels, lines = rows / fold;
  const auto run = residual ? (relu ? affine_lines<T, true, true> : affine_lines<T, true, false>)
                            : (relu ? affine_lines<T, false, true> : affine_lines<T, false, false>);
  if (streams(y, rows * channels, width)) {
    alignas(64) T buffer[kStreamBuffer];
    const Index step = kStreamBuffer / width;
    for (Index r = 0; r < lines; r += step) {
      const Index count = lines - r < step ? lines - r : step, o = r * width;
      run(x + o, residual ? residual + o : nullptr, buffer, count, width, width, scale, shift);
      stream(y + o, buffer, count * width);
    }
    end_stream();
  } else {
    run(x, residual, y, lines, width, width, scale, shift);
  }
  const Index done = lines * width, rest = rows * channels - done;
  if (rest > 0) run(x + done, residual ? residual + done : nullptr, y + done, 1, rest, rest, scale, shift);
}

/// Where the mask of a gradient comes from.
enum Mask { kNoMask, kMaskY, kMaskX };

template <class T, Mask kMask, bool kTwo>
STARLING_HD T masked(const T* __restrict x, const T* __restrict y, const T* __restrict dy, const T* __restrict dy2, Index i, T scale,
                     T shift) {
  T g = dy[i];
  if constexpr (kTwo) g += dy2[i];
  if constexpr (kMask == kMaskY) g = y[i] > T(0) ? g : T(0);
  if constexpr (kMask == kMaskX) g = x[i] * scale + shift > T(0) ? g : T(0);
  return g;
}

// dz may be dy or dy2: each element is read before it is written, so ivdep holds, but the pointers are not __restrict.
template <class T, Mask kMask, bool kTwo, bool kDz>
static inline void masked_sums_lines(const T* x, const T* y, const T* dy, const T* dy2, T* dz, Index lines, Index width,
                                     const T* __restrict mean, const T* __restrict scale, const T* __restrict shift, T* __restrict s1,
                                     T* __restrict s2) {
  Index r = 0;
  for (; r + 4 <= lines; r += 4) {
    const Index o = r * width;
    STARLING_LOOP for (Index v = 0; v < width; ++v) {
      const T a = kMask == kMaskX ? scale[v] : T(0), b = kMask == kMaskX ? shift[v] : T(0), m = mean[v];
      const Index i0 = o + v, i1 = i0 + width, i2 = i1 + width, i3 = i2 + width;
      const T g0 = masked<T, kMask, kTwo>(x, y, dy, dy2, i0, a, b), g1 = masked<T, kMask, kTwo>(x, y, dy, dy2, i1, a, b);
      const T g2 = masked<T, kMask, kTwo>(x, y, dy, dy2, i2, a, b), g3 = masked<T, kMask, kTwo>(x, y, dy, dy2, i3, a, b);
      s1[v] += (g0 + g1) + (g2 + g3);
      s2[v] += (g0 * (x[i0] - m) + g1 * (x[i1] - m)) + (g2 * (x[i2] - m) + g3 * (x[i3] - m));
      if constexpr (kDz) {
        dz[i0] = g0;
        dz[i1] = g1;
        dz[i2] = g2;
        dz[i3] = g3;
      }
    }
  }
  for (; r < lines; ++r) {
    STARLING_LOOP for (Index v = 0; v < width; ++v) {
      const Index i = r * width + v;
      const T g = masked<T, kMask, kTwo>(x, y, dy, dy2, i, kMask == kMaskX ? scale[v] : T(0), kMask == kMaskX ? shift[v] : T(0));
      s1[v] += g;
      s2[v] += g * (x[i] - mean[v]);
      if constexpr (kDz) dz[i] = g;
    }
  }
}

template <class T, bool kTwo, bool kDz>
static auto choose_masked_sums(bool mask_y, bool mask_x) {
  return mask_y   ? masked_sums_lines<T, kMaskY, kTwo, kDz>
         : mask_x ? masked_sums_lines<T, kMaskX, kTwo, kDz>
                  : masked_sums_lines<T, kNoMask, kTwo, kDz>;
}

template <class T>
static void add_folded(const T* lane, Index fold, Index channels, double* sum) {
  for (Index j = 0; j < fold; ++j) {
    for (Index c = 0; c < channels; ++c) sum[c] += static_cast<double>(lane[j * channels + c]);
  }
}

template <class T>
static void masked_sums(const T* x, const T* y, const T* dy, const T* dy2, T* dz, Index rows, Index channels, const T* mean, const T* scale,
                        const T* shift, T* scratch, double* sum_g, double* sum_gx) {
  const Index fold = fold_rows(channels), width = fold * channels, lines = rows / fold;
  T* s1 = scratch;
  T* s2 = scratch + width;
  const bool mask_y = y != nullptr, mask_x = !y && scale;
  const auto run = dy2 ? (dz ? choose_masked_sums<T, true, true>(mask_y, mask_x) : choose_masked_sums<T, true, false>(mask_y, mask_x))
                       : (dz ? choose_masked_sums<T, false, true>(mask_y, mask_x) : choose_masked_sums<T, false, false>(mask_y, mask_x));
  for (Index v = 0; v < width; ++v) s1[v] = s2[v] = T(0);
  run(x, y, dy, dy2, dz, lines, width, mean, scale, shift, s1, s2);
  const Index done = lines * width, rest = rows * channels - done;
  if (rest > 0) {
    run(x + done, y ? y + done : nullptr, dy + done, dy2 ? dy2 + done : nullptr, dz ? dz + done : nullptr, 1, rest, mean, scale, shift, s1,
        s2);
  }
  add_folded(s1, fold, channels, sum_g);
  add_folded(s2, fold, channels, sum_gx);
}

template <class T, Mask kMask, bool kTwo>
static inline void masked_affine_lines(const T* x, const T* y, const T* dy, const T* dy2, T* dx, Index lines, Index width,
                                       const T* __restrict mean, const T* __restrict scale, const T* __restrict shift,
                                       const T* __restrict a, const T* __restrict b, const T* __restrict c) {
  Index r = 0;
  for (; r + 2 <= lines; r += 2) {
    const Index o = r * width;
    STARLING_LOOP for (Index v = 0; v < width; ++v) {
      const T sa = kMask == kMaskX ? scale[v] : T(0), sb = kMask == kMaskX ? shift[v] : T(0), m = mean[v], av = a[v], bv = b[v], cv = c[v];
      const Index i0 = o + v, i1 = i0 + width;
      const T g0 = masked<T, kMask, kTwo>(x, y, dy, dy2, i0, sa, sb), g1 = masked<T, kMask, kTwo>(x, y, dy, dy2, i1, sa, sb);
      const T r0 = g0 * av + ((x[i0] - m) * bv + cv), r1 = g1 * av + ((x[i1] - m) * bv + cv);
      dx[i0] = r0;
      dx[i1] = r1;
    }
  }
  for (; r < lines; ++r) {
    STARLING_LOOP for (Index v = 0; v < width; ++v) {
      const Index i = r * width + v;
      const T g = masked<T, kMask, kTwo>(x, y, dy, dy2, i, kMask == kMaskX ? scale[v] : T(0), kMask == kMaskX ? shift[v] : T(0));
      dx[i] = g * a[v] + ((x[i] - mean[v]) * b[v] + c[v]);
    }
  }
}

template <class T>
static void masked_affine(const T* x, const T* y, const T* dy, const T* dy2, T* dx, Index rows, Index channels, const T* mean,
                          const T* scale, const T* shift, const T* a, const T* b, const T* c) {
  const Index fold = fold_rows(channels), width = fold * channels, lines = rows / fold;
  const auto run = y       ? (dy2 ? masked_affine_lines<T, kMaskY, true> : masked_affine_lines<T, kMaskY, false>)
                   : scale ? (dy2 ? masked_affine_lines<T, kMaskX, true> : masked_affine_lines<T, kMaskX, false>)
                           : (dy2 ? masked_affine_lines<T, kNoMask, true> : masked_affine_lines<T, kNoMask, false>);
  // Over a tensor that was just read, dx costs no extra reading as it is.
  const bool in_place = dx == x || dx == y || dx == dy || dx == dy2;
  if (!in_place && streams(dx, rows * channels, width)) {
    alignas(64) T buffer[kStreamBuffer];
    const Index step = kStreamBuffer / width;
    for (Index r = 0; r < lines; r += step) {
      const Index count = lines - r < step ? lines - r : step, o = r * width;
      run(x + o, y ? y + o : nullptr, dy + o, dy2 ? dy2 + o : nullptr, buffer, count, width, mean, scale, shift, a, b, c);
      stream(dx + o, buffer, count * width);
    }
    end_stream();
  } else {
    run(x, y, dy, dy2, dx, lines, width, mean, scale, shift, a, b, c);
  }
  const Index done = lines * width, rest = rows * channels - done;
  if (rest > 0) {
    run(x + done, y ? y + done : nullptr, dy + done, dy2 ? dy2 + done : nullptr, dx + done, 1, rest, mean, scale, shift, a, b, c);
  }
}

template <class T>
static void column_sums(const T* x, Index rows, Index channels, T* scratch, double* sum) {
  const Index fold = fold_rows(channels), width = fold * channels, lines = rows / fold;
  T* __restrict s = scratch;
  for (Index v = 0; v < width; ++v) s[v] = T(0);
  Index r = 0;
  for (; r + 4 <= lines; r += 4) {
    const T* __restrict row = x + r * width;
    STARLING_LOOP for (Index v = 0; v < width; ++v) { s[v] += (row[v] + row[width + v]) + (row[2 * width + v] + row[3 * width + v]); }
  }
  for (; r < lines; ++r) {
    STARLING_LOOP for (Index v = 0; v < width; ++v) s[v] += x[r * width + v];
  }
  const Index done = lines * width, rest = rows * channels - done;
  STARLING_LOOP for (Index v = 0; v < rest; ++v) s[v] += x[done + v];
  add_folded(s, fold, channels, sum);
}

/// Σ f(i) over n elements in eight independent chains, so that it vectorises without reordering anything else.
template <class T, class F>
STARLING_HD double sum_of(Index n, F f) {
  constexpr Index kLanes = 32;
  T lane[kLanes] = {};
  Index i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (Index j = 0; j < kLanes; ++j) lane[j] += f(i + j);
  }
  double sum = 0.0;
  for (Index j = 0; j < kLanes; ++j) sum += static_cast<double>(lane[j]);
  for (; i < n; ++i) sum += static_cast<double>(f(i));
  return sum;
}

template <class T>
static void layer_norm_forward(const T* x, const T* gamma, const T* beta, T* y, T* mean, T* inv_std, Index rows, Index channels,
                               double eps) {
  for (Index r = 0; r < rows; ++r) {
    const T* __restrict row = x + r * channels;
    T* __restrict out = y + r * channels;
    const double n = static_cast<double>(channels);
    const T m = static_cast<T>(sum_of<T>(
                                   channels, [&](Index c) __attribute__((always_inline)) { return row[c]; }) /
                               n);
    const double variance = sum_of<T>(
                                channels, [&](Index c) __attribute__((always_inline)) { return (row[c] - m) * (row[c] - m); }) /
                            n;
    const T inv = static_cast<T>(1.0 / __builtin_sqrt(variance + eps));
    for (Index c = 0; c < channels; ++c) {
      const T normal = (row[c] - m) * inv;
      out[c] = (gamma ? normal * gamma[c] : normal) + (beta ? beta[c] : T(0));
    }
    if (mean) mean[r] = m;
    if (inv_std) inv_std[r] = inv;
  }
}

template <class T>
static void layer_norm_backward(const T* x, const T* dy, const T* gamma, const T* mean, const T* inv_std, T* dx, Index rows, Index channels,
                                double* sum_g, double* sum_gx) {
  for (Index r = 0; r < rows; ++r) {
    const T* __restrict row = x + r * channels;
    const T* __restrict gradient = dy + r * channels;
    const T m = mean[r], inv = inv_std[r];
    if (sum_g || sum_gx) {
      for (Index c = 0; c < channels; ++c) {
        if (sum_g) sum_g[c] += static_cast<double>(gradient[c]);
        if (sum_gx) sum_gx[c] += static_cast<double>(gradient[c] * ((row[c] - m) * inv));
      }
    }
    if (!dx) continue;
    T* __restrict out = dx + r * channels;
    const double n = static_cast<double>(channels);
    const auto weighted = [&](Index c) __attribute__((always_inline)) { return gamma ? gradient[c] * gamma[c] : gradient[c]; };
    const T mean_g = static_cast<T>(sum_of<T>(channels, weighted) / n);
    const T mean_gx =
        static_cast<T>(sum_of<T>(
                           channels, [&](Index c) __attribute__((always_inline)) { return weighted(c) * ((row[c] - m) * inv); }) /
                       n);
    for (Index c = 0; c < channels; ++c) out[c] = inv * (weighted(c) - mean_g - (row[c] - m) * inv * mean_gx);
  }
}

template <class T>
static void set(Kernels<T>& table) {
  table.moments = moments<T>;
  table.affine = affine<T>;
  table.masked_sums = masked_sums<T>;
  table.masked_affine = masked_affine<T>;
  table.column_sums = column_sums<T>;
  table.layer_norm_forward = layer_norm_forward<T>;
  table.layer_norm_backward = layer_norm_backward<T>;
}

}  // namespace

void add_norm(Kernels<float>& table) { set(table); }
void add_norm(Kernels<double>& table) { set(table); }

}  // namespace starling::cpu::STARLING_ISA
