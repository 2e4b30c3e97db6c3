#include "kernels/cpu/rows_isa.h"

// Batch and layer normalisation. Memory decides their speed: every loop runs over long rows
// (fold_rows short ones at once), four rows at a time, so that per-channel values are loaded once
// for four and the loops vectorise over contiguous memory.

namespace starling::cpu::STARLING_ISA {
namespace {

template <class T>
static void moments(const T* x, Index rows, Index channels, Compute<T>* scratch, double* mean,
                    double* m2) {
  const Index fold = fold_rows(channels), width = fold * channels, lines = rows / fold;
  Compute<T>* __restrict shift = scratch;
  Compute<T>* __restrict s1 = scratch + width;
  Compute<T>* __restrict s2 = scratch + 2 * width;
  for (Index c = 0; c < channels; ++c) mean[c] = m2[c] = 0.0;
  if (lines > 0) {
    // Deviations from a rough mean (of the first lines) keep the sums small: no cancellation even
    // where the mean is large.
    const Index first = lines < 4 ? lines : 4;
    STARLING_LOOP for (Index v = 0; v < width; ++v) shift[v] = widen(x[v]);
    for (Index r = 1; r < first; ++r) {
      STARLING_LOOP for (Index v = 0; v < width; ++v) shift[v] += widen(x[r * width + v]);
    }
    const Compute<T> share = Compute<T>(1) / static_cast<Compute<T>>(first);
    STARLING_LOOP for (Index v = 0; v < width; ++v) {
      shift[v] *= share;
      s1[v] = s2[v] = Compute<T>(0);
    }
    Index r = 0;
    for (; r + 4 <= lines; r += 4) {
      const T* __restrict row = x + r * width;
      STARLING_LOOP for (Index v = 0; v < width; ++v) {
        const Compute<T> s = shift[v], d0 = widen(row[v]) - s, d1 = widen(row[width + v]) - s;
        const Compute<T> d2 = widen(row[2 * width + v]) - s, d3 = widen(row[3 * width + v]) - s;
        s1[v] += (d0 + d1) + (d2 + d3);
        s2[v] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3);
      }
    }
    for (; r < lines; ++r) {
      const T* __restrict row = x + r * width;
      STARLING_LOOP for (Index v = 0; v < width; ++v) {
        const Compute<T> d = widen(row[v]) - shift[v];
        s1[v] += d;
        s2[v] += d * d;
      }
    }
    const double n = static_cast<double>(lines), per_line = 1.0 / n,
                 per_fold = 1.0 / static_cast<double>(fold);
    for (Index j = 0; j < fold; ++j) {
      for (Index c = 0; c < channels; ++c) {
        mean[c] += static_cast<double>(shift[j * channels + c]) +
                   static_cast<double>(s1[j * channels + c]) * per_line;
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
  // Welford's update, for the rows that do not fill a line
  for (Index r = lines * fold; r < rows; ++r) {
    const double count = 1.0 / static_cast<double>(r + 1);
    for (Index c = 0; c < channels; ++c) {
      const double value = static_cast<double>(widen(x[r * channels + c])), delta = value - mean[c];
      mean[c] += delta * count;
      m2[c] += delta * (value - mean[c]);
    }
  }
}

/// Calls run(to, first element, lines, width, first column) over pieces of rows of `out`, one long
/// row a line. The results of 16-bit types go to a buffer and are packed from there, as are those
/// that should go past the caches if `may_stream`; others go straight to `out`.
template <class T, class F>
static inline void in_pieces(T* out, Index rows, Index channels, bool may_stream, F run) {
  const Index fold = fold_rows(channels), width = fold * channels, lines = rows / fold;
  const Index done = lines * width, rest = rows * channels - done;
  const bool streamed = may_stream && streams(out, rows * channels, width);
  if constexpr (kIsLow<T>) {
    alignas(64) Compute<T> buffer[kStreamBuffer];
    // Few lines at a time: longer pieces make reading and writing take turns.
    const Index piece = width < kStreamBuffer / 4 ? width : kStreamBuffer / 4,
                step = piece == width ? 4 : 1;
    for (Index r = 0; r < lines; r += step) {
      const Index count = lines - r < step ? lines - r : step;
      for (Index column = 0; column < width; column += piece) {
        const Index length = width - column < piece ? width - column : piece,
                    o = r * width + column;
        run(buffer, o, count, length, column);
        pack(out + o, buffer, count * length, streamed);
      }
    }
    if (streamed) end_stream();
    if (rest > 0) {
      run(buffer, done, 1, rest, 0);
      pack(out + done, buffer, rest, false);
    }
  } else {
    if (streamed) {
      alignas(64) T buffer[kStreamBuffer];
      const Index step = kStreamBuffer / width;
      for (Index r = 0; r < lines; r += step) {
        const Index count = lines - r < step ? lines - r : step, o = r * width;
        run(buffer, o, count, width, 0);
        stream(out + o, buffer, count * width);
      }
      end_stream();
    } else {
      run(out, 0, lines, width, 0);
    }
    if (rest > 0) run(out + done, done, 1, rest, 0);
  }
}

// y may be x or the residual: each element is read before it is written, so ivdep holds, but the
// pointers are not __restrict.
template <class T, bool kResidual, bool kRelu>
static inline void affine_lines(const T* x, const T* residual, Compute<T>* y, Index lines,
                                Index stride, Index width, const Compute<T>* __restrict scale,
                                const Compute<T>* __restrict shift,
                                math::RectifierOf<Compute<T>> rectifier) {
  const auto value = [=](Index i, Compute<T> a, Compute<T> b) __attribute__((always_inline)) {
    Compute<T> result = widen(x[i]) * a + b;
    if constexpr (kResidual) result += widen(residual[i]);
    if constexpr (kRelu) result = rectifier.value(result);
    return result;
  };
  Index r = 0;
  for (; r + 4 <= lines; r += 4) {
    const Index o = r * stride;
    STARLING_LOOP for (Index v = 0; v < width; ++v) {
      const Compute<T> a = scale[v], b = shift[v];
      const Index i0 = o + v, i1 = i0 + stride, i2 = i1 + stride, i3 = i2 + stride;
      const Compute<T> y0 = value(i0, a, b), y1 = value(i1, a, b), y2 = value(i2, a, b),
                       y3 = value(i3, a, b);
      y[i0] = y0;
      y[i1] = y1;
      y[i2] = y2;
      y[i3] = y3;
    }
  }
  for (; r < lines; ++r) {
    STARLING_LOOP for (Index v = 0; v < width; ++v) y[r * stride + v] =
        value(r * stride + v, scale[v], shift[v]);
  }
}

template <class T>
static void affine(const T* x, const T* residual, T* y, Index rows, Index channels,
                   const Compute<T>* scale, const Compute<T>* shift, bool relu,
                   const math::RectifierOf<Compute<T>>& rectifier) {
  const auto run = residual ? (relu ? affine_lines<T, true, true> : affine_lines<T, true, false>)
                            : (relu ? affine_lines<T, false, true> : affine_lines<T, false, false>);
  in_pieces(y, rows, channels, true,
            [&](Compute<T>* to, Index o, Index lines, Index width, Index column) {
              run(x + o, residual ? residual + o : nullptr, to, lines, width, width, scale + column,
                  shift + column, rectifier);
            });
}

/// Where the mask of a gradient comes from.
enum Mask { kNoMask, kMaskY, kMaskX };

/// Element i, of column v: scale and shift are read for kMaskX alone.
template <class T, Mask kMask, bool kTwo>
STARLING_HD Compute<T> masked(const T* __restrict x, const T* __restrict y, const T* __restrict dy,
                              const T* __restrict dy2, Index i, const Compute<T>* __restrict scale,
                              const Compute<T>* __restrict shift, Index v,
                              math::RectifierOf<Compute<T>> rectifier) {
  Compute<T> g = widen(dy[i]);
  if constexpr (kTwo) g += widen(dy2[i]);
  if constexpr (kMask != kNoMask) {
    Compute<T> at;
    if constexpr (kMask == kMaskY) {
      at = widen(y[i]);
    } else {
      at = widen(x[i]) * scale[v] + shift[v];
    }
    g = rectifier.gradient(at, g);
  }
  return g;
}

// dz may be dy or dy2: each element is read before it is written, so ivdep holds, but the pointers
// are not __restrict.
template <class T, Mask kMask, bool kTwo, bool kDz>
static inline void masked_sums_lines(const T* x, const T* y, const T* dy, const T* dy2,
                                     Compute<T>* dz, Index lines, Index width,
                                     const Compute<T>* __restrict mean,
                                     const Compute<T>* __restrict scale,
                                     const Compute<T>* __restrict shift,
                                     math::RectifierOf<Compute<T>> rectifier,
                                     Compute<T>* __restrict s1, Compute<T>* __restrict s2) {
  const auto gradient = [=](Index i, Index v) __attribute__((always_inline)) {
    return masked<T, kMask, kTwo>(x, y, dy, dy2, i, scale, shift, v, rectifier);
  };
  Index r = 0;
  for (; r + 4 <= lines; r += 4) {
    STARLING_LOOP for (Index v = 0; v < width; ++v) {
      const Index i0 = r * width + v, i1 = i0 + width, i2 = i1 + width, i3 = i2 + width;
      const Compute<T> m = mean[v], g0 = gradient(i0, v), g1 = gradient(i1, v),
                       g2 = gradient(i2, v), g3 = gradient(i3, v);
      s1[v] += (g0 + g1) + (g2 + g3);
      s2[v] += (g0 * (widen(x[i0]) - m) + g1 * (widen(x[i1]) - m)) +
               (g2 * (widen(x[i2]) - m) + g3 * (widen(x[i3]) - m));
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
      const Compute<T> g = gradient(i, v);
      s1[v] += g;
      s2[v] += g * (widen(x[i]) - mean[v]);
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
static void masked_sums(const T* x, const T* y, const T* dy, const T* dy2, T* dz, Index rows,
                        Index channels, const Compute<T>* mean, const Compute<T>* scale,
                        const Compute<T>* shift, const math::RectifierOf<Compute<T>>& rectifier,
                        Compute<T>* scratch, double* sum_g, double* sum_gx) {
  const Index fold = fold_rows(channels), width = fold * channels, lines = rows / fold;
  Compute<T>* s1 = scratch;
  Compute<T>* s2 = scratch + width;
  const bool mask_y = y != nullptr, mask_x = !y && scale;
  const auto run = dy2 ? (dz ? choose_masked_sums<T, true, true>(mask_y, mask_x)
                             : choose_masked_sums<T, true, false>(mask_y, mask_x))
                       : (dz ? choose_masked_sums<T, false, true>(mask_y, mask_x)
                             : choose_masked_sums<T, false, false>(mask_y, mask_x));
  for (Index v = 0; v < width; ++v) s1[v] = s2[v] = Compute<T>(0);
  const auto sums = [&](Compute<T>* to, Index o, Index count, Index length, Index column) {
    run(x + o, y ? y + o : nullptr, dy + o, dy2 ? dy2 + o : nullptr, to, count, length,
        mean + column, scale ? scale + column : nullptr, shift ? shift + column : nullptr,
        rectifier, s1 + column, s2 + column);
  };
  if (dz) {
    in_pieces(dz, rows, channels, false, sums);
  } else {
    const Index done = lines * width, rest = rows * channels - done;
    sums(nullptr, 0, lines, width, 0);
    if (rest > 0) sums(nullptr, done, 1, rest, 0);
  }
  add_folded(s1, fold, channels, sum_g);
  add_folded(s2, fold, channels, sum_gx);
}

template <class T, Mask kMask, bool kTwo>
static inline void masked_affine_lines(
    const T* x, const T* y, const T* dy, const T* dy2, Compute<T>* dx, Index lines, Index width,
    const Compute<T>* __restrict mean, const Compute<T>* __restrict scale,
    const Compute<T>* __restrict shift, math::RectifierOf<Compute<T>> rectifier,
    const Compute<T>* __restrict a, const Compute<T>* __restrict b,
    const Compute<T>* __restrict c) {
  const auto value = [=](Index i, Index v) __attribute__((always_inline)) {
    return masked<T, kMask, kTwo>(x, y, dy, dy2, i, scale, shift, v, rectifier) * a[v] +
           ((widen(x[i]) - mean[v]) * b[v] + c[v]);
  };
  Index r = 0;
  for (; r + 2 <= lines; r += 2) {
    STARLING_LOOP for (Index v = 0; v < width; ++v) {
      const Index i0 = r * width + v, i1 = i0 + width;
      const Compute<T> r0 = value(i0, v), r1 = value(i1, v);
      dx[i0] = r0;
      dx[i1] = r1;
    }
  }
  for (; r < lines; ++r) {
    STARLING_LOOP for (Index v = 0; v < width; ++v) dx[r * width + v] = value(r * width + v, v);
  }
}

template <class T>
static void masked_affine(const T* x, const T* y, const T* dy, const T* dy2, T* dx, Index rows,
                          Index channels, const Compute<T>* mean, const Compute<T>* scale,
                          const Compute<T>* shift, const math::RectifierOf<Compute<T>>& rectifier,
                          const Compute<T>* a, const Compute<T>* b, const Compute<T>* c) {
  const auto run =
      y ? (dy2 ? masked_affine_lines<T, kMaskY, true> : masked_affine_lines<T, kMaskY, false>)
      : scale
          ? (dy2 ? masked_affine_lines<T, kMaskX, true> : masked_affine_lines<T, kMaskX, false>)
          : (dy2 ? masked_affine_lines<T, kNoMask, true> : masked_affine_lines<T, kNoMask, false>);
  // A dx in place of a tensor just read is in the caches already.
  const bool in_place = dx == x || dx == y || dx == dy || dx == dy2;
  in_pieces(dx, rows, channels, !in_place,
            [&](Compute<T>* to, Index o, Index lines, Index width, Index column) {
              run(x + o, y ? y + o : nullptr, dy + o, dy2 ? dy2 + o : nullptr, to, lines, width,
                  mean + column, scale ? scale + column : nullptr, shift ? shift + column : nullptr,
                  rectifier, a + column, b + column, c + column);
            });
}

template <class T>
static void layer_norm_forward(const T* x, const Compute<T>* gamma, const Compute<T>* beta, T* y,
                               Compute<T>* mean, Compute<T>* inv_std, Index rows, Index n,
                               bool centered, double eps) {
  using R = Compute<T>;
  alignas(64) R buffer[kStreamBuffer];
  const RowInput<T> in{x, buffer, n};
  const RowOutput<T> out(y, buffer, rows, n, true);
  const double share = 1.0 / static_cast<double>(n);
  for (Index r = 0; r < rows; ++r) {
    const T *next = x + (r + 1 < rows ? r + 1 : r) * n, *none = nullptr;
    R m = R(0);
    if (centered) {
      m = static_cast<R>(share *
                         row_sum<R>(
                             n, none, [&](Index first, Index count) __attribute__((always_inline)) {
                               return [from = in.numbers(r, first, count, false)](Index i)
                                   __attribute__((always_inline)) {
                                 return from[i];
                               };
                             }));
    }
    const double variance =
        share * row_sum<R>(
                    n, next, [&](Index first, Index count) __attribute__((always_inline)) {
                      return [ from = in.numbers(r, first, count, centered), m ](Index i)
                          __attribute__((always_inline)) {
                        return (from[i] - m) * (from[i] - m);
                      };
                    });
    const R inv = static_cast<R>(1.0 / __builtin_sqrt(variance + eps));
    in_parts(
        n, kStreamBuffer, [&](Index first, Index count) __attribute__((always_inline)) {
          const R* from = in.numbers(r, first, count, true);
          R* to = out.room(r, first);
          const R *factor = gamma + first, *shift = beta + first;
          if (gamma && beta) {
            STARLING_LOOP for (Index i = 0; i < count; ++i) to[i] =
                (from[i] - m) * inv * factor[i] + shift[i];
          } else if (gamma) {
            STARLING_LOOP for (Index i = 0; i < count; ++i) to[i] = (from[i] - m) * inv * factor[i];
          } else {
            STARLING_LOOP for (Index i = 0; i < count; ++i) to[i] =
                (from[i] - m) * inv + (beta ? shift[i] : R(0));
          }
          out.put(r, first, count);
        });
    if (mean) mean[r] = m;
    if (inv_std) inv_std[r] = inv;
  }
  out.end();
}

/// A row, its gradient, and its statistics.
template <class T>
struct LayerNormRow {
  using R = Compute<T>;
  const T *x, *dy;
  R mean, inv_std;
  [[gnu::always_inline]] R gradient(Index i) const { return widen(dy[i]); }
  [[gnu::always_inline]] R normal(Index i) const { return (widen(x[i]) - mean) * inv_std; }
};

/// Adds two rows' gradients g, or one's, to sum_g, and g times what is normalised to sum_gx. The
/// sums of both along each row, weighted by gamma, are along[row][2].
template <class T, bool kTwo, bool kGamma>
static inline void layer_norm_sums(const LayerNormRow<T>& first, const LayerNormRow<T>& second,
                                   Index n, const Compute<T>* gamma, Compute<T>* sum_g,
                                   Compute<T>* sum_gx, double (&along)[2][2]) {
  using R = Compute<T>;
  constexpr Index kLanes = 32;
  along[0][0] = along[0][1] = along[1][0] = along[1][1] = 0.0;
  in_parts(
      n, kStreamBuffer, [&](Index begin, Index size) __attribute__((always_inline)) {
        R a0[kLanes] = {}, b0[kLanes] = {}, a1[kLanes] = {}, b1[kLanes] = {};
        const LayerNormRow<T> p = first, q = second;
        R* __restrict to = sum_g;
        R* __restrict tox = sum_gx;
        for (Index i = begin; i < begin + size; i += kLanes) {
          const Index left = begin + size - i, count = left < kLanes ? left : kLanes;
          STARLING_LOOP for (Index j = 0; j < count; ++j) {
            const R g = p.gradient(i + j), h = kTwo ? q.gradient(i + j) : R(0), u = p.normal(i + j),
                    v = kTwo ? q.normal(i + j) : R(0), factor = kGamma ? gamma[i + j] : R(1);
            const R weighted = g * factor, other = h * factor;
            to[i + j] += g + h;
            tox[i + j] += g * u + h * v;
            a0[j] += weighted;
            b0[j] += weighted * u;
            a1[j] += other;
            b1[j] += other * v;
          }
        }
        for (Index j = 0; j < kLanes; ++j) {
          along[0][0] += static_cast<double>(a0[j]);
          along[0][1] += static_cast<double>(b0[j]);
          along[1][0] += static_cast<double>(a1[j]);
          along[1][1] += static_cast<double>(b1[j]);
        }
      });
}

template <class T>
static void layer_norm_backward(const T* x, const T* dy, const Compute<T>* gamma,
                                const Compute<T>* mean, const Compute<T>* inv_std, const T* term,
                                T* dx, Index rows, Index n, Compute<T>* scratch, double* sums) {
  using R = Compute<T>;
  constexpr Index kRun = 64;  // rows whose sums gather in R
  alignas(64) R buffer[kStreamBuffer];
  const RowOutput<T> out(dx, buffer, rows, n, dx);
  const double share = 1.0 / static_cast<double>(n);
  const auto row = [=](Index r) {
    return LayerNormRow<T>{x + r * n, dy + r * n, mean ? mean[r] : R(0), inv_std[r]};
  };
  const auto write = [&](Index r, const double(&along)[2]) {
    const LayerNormRow<T> own = row(r);
    const R mean_g = mean ? static_cast<R>(share * along[0]) : R(0),
            mean_gx = static_cast<R>(share * along[1]);
    const Index ahead = r + 2 < rows ? 2 * n : 0;
    in_parts(
        n, kPrefetchInterval, [&](Index first, Index count) __attribute__((always_inline)) {
          prefetch_range(own.x + first + ahead, count);
          prefetch_range(own.dy + first + ahead, count);
          R* to = out.room(r, first);
          const R* factor = gamma + first;
          const T* also = term ? term + r * n + first : nullptr;
          const auto fill = [=](auto scaled, auto added) __attribute__((always_inline)) {
            STARLING_LOOP for (Index i = 0; i < count; ++i) {
              const R g = own.gradient(first + i) * (scaled ? factor[i] : R(1)),
                      value = own.inv_std * (g - mean_g - own.normal(first + i) * mean_gx);
              to[i] = added ? value + widen(also[i]) : value;
            }
          };
          const std::true_type yes;
          const std::false_type no;
          if (gamma)
            term ? fill(yes, yes) : fill(yes, no);
          else
            term ? fill(no, yes) : fill(no, no);
          out.put(r, first, count);
        });
  };
  for (Index r = 0, count; r < rows; r += count) {
    count = rows - r < 2 ? 1 : 2;
    if (r % kRun == 0) {
      for (Index c = 0; c < 2 * n; ++c) scratch[c] = R(0);
    }
    double along[2][2];
    const bool two = count == 2;
    const LayerNormRow<T> first = row(r), second = two ? row(r + 1) : first;
    (gamma ? (two ? layer_norm_sums<T, true, true> : layer_norm_sums<T, false, true>)
           : (two ? layer_norm_sums<T, true, false> : layer_norm_sums<T, false, false>))(
        first, second, n, gamma, scratch, scratch + n, along);
    if (sums && (r % kRun == kRun - 2 || r + count == rows)) {
      for (Index c = 0; c < 2 * n; ++c) sums[c] += static_cast<double>(scratch[c]);
    }
    for (Index k = 0; dx && k < count; ++k) write(r + k, along[k]);
  }
  if (dx) out.end();
}

template <class T>
static void set(Kernels<T>& table) {
  table.moments = moments<T>;
  table.affine = affine<T>;
  table.masked_sums = masked_sums<T>;
  table.masked_affine = masked_affine<T>;
  table.layer_norm_forward = layer_norm_forward<T>;
  table.layer_norm_backward = layer_norm_backward<T>;
}

}  // namespace

void add_norm(AllKernels& all) { set(all.fp32), set(all.fp64), set(all.bf16), set(all.fp16); }

}  // namespace starling::cpu::STARLING_ISA
