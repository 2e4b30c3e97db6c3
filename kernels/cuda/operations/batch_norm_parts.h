#pragma once

#include "kernels/cuda/device/column_tiles.h"
#include "kernels/math/rectifier.h"

// The passes over a batch of a batch norm (batch_norm.cu).
namespace starling::cuda {

/// Statistics of a batch and where they go; running statistics are optional.
template <class C>
struct Statistics {
  C *saved_mean, *saved_inv_std, *running_mean, *running_var;
  std::int64_t* batches_tracked;
  double eps, momentum;

  /// Makes the statistics from the mean and the sum of squared deviations of channel c's `rows`
  /// numbers.
  STARLING_HD void take(Index c, double mean, double squares, Index rows) const {
    // All loads before the first store, which would delay them: a single block does this.
    const double old_mean = running_mean ? static_cast<double>(running_mean[c]) : 0.0;
    const double old_var = running_var ? static_cast<double>(running_var[c]) : 0.0;
    const bool counts = c == 0 && batches_tracked;
    const std::int64_t batches = counts ? *batches_tracked : 0;
    const double n = static_cast<double>(rows), variance = squares / n,
                 unbiased = rows > 1 ? squares / (n - 1.0) : variance;
    saved_mean[c] = static_cast<C>(mean);
    saved_inv_std[c] = static_cast<C>(1.0 / sqrt(variance + eps));
    if (running_mean)
      running_mean[c] = static_cast<C>((1.0 - momentum) * old_mean + momentum * mean);
    if (running_var)
      running_var[c] = static_cast<C>((1.0 - momentum) * old_var + momentum * unbiased);
    if (counts) *batches_tracked = batches + 1;
  }
};

/// Takes the arguments of BatchNormForward or BatchNormFinish.
template <class C, class Args>
Statistics<C> statistics_of(const Args& args) {
  return {.saved_mean = args.saved_mean.template data<C>(),
          .saved_inv_std = args.saved_inv_std.template data<C>(),
          .running_mean = optional<C>(args.running_mean),
          .running_var = optional<C>(args.running_var),
          .batches_tracked = optional<std::int64_t>(args.batches_tracked),
          .eps = args.eps,
          .momentum = args.momentum};
}

/// The numbers of a thread's channels, or `otherwise` for each where there are none.
template <class C, int kSize, bool kBack>
__device__ __forceinline__ void load_channels(const C* from, const ColumnPlace<kBack>& place,
                                              C otherwise, C (&to)[kSize]) {
#pragma unroll
  for (int j = 0; j < kSize; ++j)
    to[j] = from && place.inside ? from[place.channel + j] : otherwise;
}
/// 1/σ becomes γ/σ.
template <class C, int kSize, bool kBack>
__device__ __forceinline__ void scale_by(const C* gamma, const ColumnPlace<kBack>& place,
                                         C (&scale)[kSize]) {
#pragma unroll
  for (int j = 0; j < kSize; ++j)
    scale[j] *= gamma && place.inside ? gamma[place.channel + j] : C(1);
}

/// Calls f(j, value) for number j of the thread's group in each of its rows of x.
template <int kSize, int kRows, class T, class F>
__device__ __forceinline__ void for_values(const T* x, const ColumnPlace<false>& place,
                                           const F& f) {
  for_rows<kRows>(
      place.count, [&](Index r) { return issue_load<kSize>(x + place.at(r)); },
      [&](const Coming<T, kSize>& row, Index) {
        const auto in = row.group();
#pragma unroll
        for (int j = 0; j < kSize; ++j) f(j, static_cast<Compute<T>>(in.v[j]));
      });
}

/// y = f(j, x, residual) for number j of each group, then what `rectifier` makes of it if `relu`.
template <int kSize, bool kResidual, class T, class F>
__device__ __forceinline__ void map_rows(const T* x, const T* residual, T* y,
                                         const ColumnPlace<true>& place, bool relu,
                                         const math::RectifierOf<Compute<T>>& rectifier,
                                         const F& f) {
  using C = Compute<T>;
  struct Row {
    Coming<T, kSize> x, add;
  };
  for_rows<kResidual ? 2 : 4>(
      place.count,
      [&](Index r) {
        Row row;
        row.x = issue_load<kSize>(x + place.at(r));
        if constexpr (kResidual) row.add = issue_load<kSize>(residual + place.at(r));
        return row;
      },
      [&](const Row& row, Index r) {
        auto out = row.x.group();
        Group<T, kSize> add{};
        if constexpr (kResidual) add = row.add.group();
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          const C value = f(j, static_cast<C>(out.v[j]), static_cast<C>(add.v[j]));
          out.v[j] = static_cast<T>(relu ? rectifier.value(value) : value);
        }
        store_group<T, kSize>(y + place.at(r), out);
      });
}

/// (x - mean)·γ/σ + β: the form of the forward and the backward kernel, so that the backward pass
/// finds the sign of y again.
template <class C>
STARLING_HD C normal(C x, C mean, C scale, C beta) {
  return (x - mean) * scale + beta;
}

namespace detail {

/// Where the gradient before the normalisation comes from: dy + dy2, masked by y, or
/// by what x gives in y's place.
template <class T>
struct Gradient {
  /// Y and dy2 are optional. No __restrict__: results may go where one of these was
  const T *x, *y, *dy, *dy2;
  const Compute<T>*mean, *inv_std, *gamma, *beta;
  math::RectifierOf<Compute<T>> rectifier;
};

/// Rows of one thread that are on their way at once, of both passes below; twice as many are where
/// x and dy are all.
constexpr int kGradientRows = 2;

template <class T, int kSize>
struct GradientRows {
  Coming<T, kSize> x[kGradientRows], dy[kGradientRows], dy2[kGradientRows], y[kGradientRows];
};

/// Rows first … first + n - 1 of a thread.
template <bool kAll, bool kMaskX, int kSize, class T, bool kBack>
__device__ __forceinline__ GradientRows<T, kSize> load_gradient(const Gradient<T>& from,
                                                                const ColumnPlace<kBack>& place,
                                                                Index first, int n) {
  GradientRows<T, kSize> rows;
  const Index at = place.at(first), stride = kBack ? -place.stride : place.stride;
#pragma unroll
  for (int u = 0; u < kGradientRows; ++u) {
    if (!kAll && u >= n) continue;
    rows.x[u] = issue_load<kSize>(from.x + at + u * stride);
    rows.dy[u] = issue_load<kSize>(from.dy + at + u * stride);
  }
  const auto optional = [&](const T* x, Coming<T, kSize>(&to)[kGradientRows]) {
    if (!x) return;
#pragma unroll
    for (int u = 0; u < kGradientRows; ++u) {
      if (kAll || u < n) to[u] = issue_load<kSize>(x + at + u * stride);
    }
  };
  optional(from.dy2, rows.dy2);
  if constexpr (!kMaskX) optional(from.y, rows.y);
  return rows;
}

/// The masked gradient of row u, and x without its mean.
template <bool kMaskX, class T, int kSize, class C>
__device__ __forceinline__ void masked_gradient(const Gradient<T>& from,
                                                const GradientRows<T, kSize>& rows, int u,
                                                const C (&mean)[kSize], const C (&scale)[kSize],
                                                const C (&beta)[kSize], C (&g)[kSize],
                                                C (&centred)[kSize]) {
  const auto x = rows.x[u].group(), dy = rows.dy[u].group(), dy2 = rows.dy2[u].group(),
             y = rows.y[u].group();
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    const C value = static_cast<C>(x.v[j]);
    C sum = static_cast<C>(dy.v[j]);
    if (from.dy2) sum += static_cast<C>(dy2.v[j]);
    if constexpr (kMaskX) {
      sum = from.rectifier.gradient(normal(value, mean[j], scale[j], beta[j]), sum);
    } else if (from.y) {
      sum = from.rectifier.gradient(static_cast<C>(y.v[j]), sum);
    }
    g[j] = sum;
    centred[j] = value - mean[j];
  }
}

/// Calls f(group at x's place, g, x without its mean) for each row of a thread.
template <bool kMaskX, int kSize, class T, bool kBack, class C, class F>
__device__ __forceinline__ void for_gradients(const Gradient<T>& from,
                                              const ColumnPlace<kBack>& place,
                                              const C (&mean)[kSize], const C (&scale)[kSize],
                                              const C (&beta)[kSize], const F& f) {
  in_flight<kGradientRows>(
      place.count,
      [&]<bool kAll>(Index first, int n) {
        return load_gradient<kAll, kMaskX, kSize>(from, place, first, n);
      },
      [&]<bool kAll>(const GradientRows<T, kSize>& rows, Index first, int n) {
#pragma unroll
        for (int u = 0; u < kGradientRows; ++u) {
          if (!kAll && u >= n) continue;
          C g[kSize], centred[kSize];
          masked_gradient<kMaskX>(from, rows, u, mean, scale, beta, g, centred);
          f(place.at(first + u), g, centred);
        }
      });
}

/// Sums of g and of g·(x - mean) over all rows, for to.take(channel, the one, the other); writes g
/// to `dresidual` where it is given. partial[parts][2][channels] and arrivals: last_block.h.
template <class T, int kSize, bool kMaskX, class To>
__global__ void __launch_bounds__(kColumnThreads, 1)
    gradient_sums(Gradient<T> from, T* dresidual, ColumnTiles t, Compute<T>* partial,
                  unsigned* arrivals, To to) {
  using C = Compute<T>;
  __shared__ __align__(16) unsigned char shared[ColumnSums<C, kSize>::kBytes];
  const auto place = column_place<kSize>(t);
  C mean[kSize], scale[kSize] = {}, beta[kSize] = {}, sums[2 * kSize] = {};
  load_channels(from.mean, place, C(0), mean);
  if constexpr (kMaskX) {
    load_channels(from.beta, place, C(0), beta);
    load_channels(from.inv_std, place, C(0), scale);
    scale_by(from.gamma, place, scale);
  }
  for_gradients<kMaskX>(from, place, mean, scale, beta,
                        [&](Index at, const C(&g)[kSize], const C(&centred)[kSize]) {
                          Group<T, kSize> out;
#pragma unroll
                          for (int j = 0; j < kSize; ++j) {
                            sums[j] += g[j];
                            sums[kSize + j] += g[j] * centred[j];
                            out.v[j] = static_cast<T>(g[j]);
                          }
                          if (dresidual) store_group<T, kSize>(dresidual + at, out);
                        });
  sum_columns<kSize>(sums, partial, arrivals, t, place, shared, to);
}

/// dx = g·γ/σ + (x - mean)·slope + offset of the channel.
template <class T, int kSize, bool kMaskX>
__global__ void __launch_bounds__(kColumnThreads, 1)
    input_gradient(Gradient<T> from, T* dx, ColumnTiles t, const Compute<T>* slopes,
                   const Compute<T>* offsets) {
  using C = Compute<T>;
  const auto place = column_place<kSize, true>(t);
  C mean[kSize], scale[kSize], beta[kSize] = {}, slope[kSize], offset[kSize];
  load_channels(from.mean, place, C(0), mean);
  load_channels(from.inv_std, place, C(0), scale);
  if constexpr (kMaskX) load_channels(from.beta, place, C(0), beta);
  scale_by(from.gamma, place, scale);
  load_channels(slopes, place, C(0), slope);
  load_channels(offsets, place, C(0), offset);
  for_gradients<kMaskX>(
      from, place, mean, scale, beta, [&](Index at, const C(&g)[kSize], const C(&centred)[kSize]) {
        Group<T, kSize> out;
#pragma unroll
        for (int j = 0; j < kSize; ++j)
          out.v[j] = static_cast<T>(g[j] * scale[j] + (centred[j] * slope[j] + offset[j]));
        store_group<T, kSize>(dx + at, out);
      });
}

}  // namespace detail

}  // namespace starling::cuda
