#include "core/operations/norms.h"
#include "kernels/cuda/device/column_tiles.h"
#include "kernels/cuda/device/last_block.h"
#include "kernels/math/rectifier.h"

// Batch normalisation in two kernels: sums over parts of the rows, and the elementwise pass. Each
// block of that pass first combines the sums of its channels, all in the same order, and the first
// one of a tile writes what they give, such as running statistics. It walks the rows from the last
// to the first, as the first kernel has left the last ones in the cache. Where sums alone are asked
// for, the block that arrives last combines them.
namespace starling::cuda {
namespace {

/// Statistics of a batch and where they go; running statistics are optional.
template <class C>
struct Statistics {
  C *saved_mean, *saved_inv_std, *running_mean, *running_var;
  std::int64_t* batches_tracked;
  double eps, momentum;

  /// 1/σ of a channel whose `rows` numbers have these squared deviations.
  STARLING_HD C inverse(double squares, Index rows) const {
    return static_cast<C>(1.0 / sqrt(squares / static_cast<double>(rows) + eps));
  }
  /// Makes the statistics from the mean and the sum of squared deviations of channel c's `rows`
  /// numbers.
  STARLING_HD void take(Index c, double mean, double squares, Index rows) const {
    // All loads before the first store, which would delay them.
    const double old_mean = running_mean ? static_cast<double>(running_mean[c]) : 0.0;
    const double old_var = running_var ? static_cast<double>(running_var[c]) : 0.0;
    const bool counts = c == 0 && batches_tracked;
    const std::int64_t batches = counts ? *batches_tracked : 0;
    const double n = static_cast<double>(rows), unbiased = squares / (rows > 1 ? n - 1.0 : n);
    saved_mean[c] = static_cast<C>(mean);
    saved_inv_std[c] = inverse(squares, rows);
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
  return {.saved_mean = optional<C>(args.saved_mean),
          .saved_inv_std = optional<C>(args.saved_inv_std),
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

/// Two numbers of each channel of a tile, of which a thread finds its own.
template <class C, int kSize>
struct ChannelPairs {
  C v[2][kWarp * kSize];
  __device__ __forceinline__ void put(Index channel, C first, C second) {
    v[0][channel % (kWarp * kSize)] = first;
    v[1][channel % (kWarp * kSize)] = second;
  }
  __device__ __forceinline__ void get(Index channel, C (&first)[kSize], C (&second)[kSize]) const {
    const int at = static_cast<int>(channel % (kWarp * kSize));
#pragma unroll
    for (int j = 0; j < kSize; ++j) first[j] = v[0][at + j], second[j] = v[1][at + j];
  }
};

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

/// What the gradient's sums of a channel become: the parameters' gradients, the sums themselves
/// where they are asked for, and the line that the gradient of x takes.
template <class C>
struct GradientResults {
  const C *inv_std, *gamma;
  C *dgamma, *dbeta;         ///< optional
  double *sum, *normal_sum;  ///< of g, and of g·x̂; optional
  Index rows;
  bool accumulate, training;

  STARLING_HD void write(Index c, double g, double gx) const {
    if (dgamma)
      dgamma[c] = static_cast<C>((accumulate ? static_cast<double>(dgamma[c]) : 0.0) + gx);
    if (dbeta) dbeta[c] = static_cast<C>((accumulate ? static_cast<double>(dbeta[c]) : 0.0) + g);
    if (sum) sum[c] = g;
    if (normal_sum) normal_sum[c] = gx;
  }
  /// dx = γ/σ (g - mean(g) - x̂·mean(g·x̂)); with constant statistics only the first term is left.
  STARLING_HD C share(Index c, double total) const {
    const double factor =
        (gamma ? static_cast<double>(gamma[c]) : 1.0) * static_cast<double>(inv_std[c]);
    return static_cast<C>(training ? -factor * total / static_cast<double>(rows) : 0.0);
  }
};

/// Sums of g and of g·(x - mean) over the rows of each part: partial[parts][2][channels]; writes g
/// to `dresidual` where it is given. With `arrivals` (last_block.h) the results of the sums, too.
template <class T, int kSize, bool kMaskX>
__global__ void __launch_bounds__(kColumnThreads, 1)
    gradient_sums(Gradient<T> from, T* dresidual, ColumnTiles t, Compute<T>* partial,
                  unsigned* arrivals, GradientResults<Compute<T>> to) {
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
  sum_over_rows<kColumnThreads>(sums, reinterpret_cast<C*>(shared), t.width);
  store_sums<kSize>(sums, partial, t, place);
  if (!arrivals || !last_block(arrivals + blockIdx.x, t.parts)) return;
  combine_sums<kSize>(partial, t, shared, [&](Index c, double g, double product) {
    to.write(c, g, product * static_cast<double>(to.inv_std[c]));
  });
}

/// dx = g·γ/σ + (x - mean)·slope + offset, which follow from the sums of the channel: those that
/// gradient_sums() left, or where `partial` is null given ones of g and g·x̂. Without dx only what
/// else the sums give is written; there are then no parts.
template <class T, int kSize, bool kMaskX>
__global__ void __launch_bounds__(kColumnThreads, 1)
    input_gradient(Gradient<T> from, T* dx, ColumnTiles t, const Compute<T>* partial,
                   const double* sum, const double* normal_sum, GradientResults<Compute<T>> to) {
  using C = Compute<T>;
  __shared__ __align__(16) unsigned char shared[ColumnSums<C, kSize>::kBytes];
  __shared__ ChannelPairs<C, kSize> lines;
  const auto take = [&](Index c, double g, double gx) {
    if (blockIdx.y == 0) to.write(c, g, gx);
    const C inv = to.inv_std[c];
    lines.put(c, to.share(c, gx * static_cast<double>(inv)), to.share(c, g));
  };
  if (partial) {
    combine_sums<kSize>(partial, t, shared, [&](Index c, double g, double product) {
      take(c, g, product * static_cast<double>(to.inv_std[c]));
    });
  } else {
    const int columns = t.width * kSize;
    const Index c = Index{blockIdx.x} * columns + threadIdx.x;
    if (static_cast<int>(threadIdx.x) < columns && c < t.channels) take(c, sum[c], normal_sum[c]);
  }
  if (!dx) return;
  __syncthreads();
  const auto place = column_place<kSize, true>(t);
  C mean[kSize], scale[kSize], beta[kSize] = {}, slope[kSize], offset[kSize];
  load_channels(from.mean, place, C(0), mean);
  load_channels(from.inv_std, place, C(0), scale);
  if constexpr (kMaskX) load_channels(from.beta, place, C(0), beta);
  scale_by(from.gamma, place, scale);
  lines.get(place.channel, slope, offset);
  for_gradients<kMaskX>(
      from, place, mean, scale, beta, [&](Index at, const C(&g)[kSize], const C(&centred)[kSize]) {
        Group<T, kSize> out;
#pragma unroll
        for (int j = 0; j < kSize; ++j)
          out.v[j] = static_cast<T>(g[j] * scale[j] + (centred[j] * slope[j] + offset[j]));
        store_group<T, kSize>(dx + at, out);
      });
}

/// Calls take(channel, mean, sum of squared deviations) of the whole, from those of the parts.
template <int kSize, class C, class Take>
__device__ __forceinline__ void combine_moments(const C* partial, const ColumnTiles& t,
                                                unsigned char* shared, const Take& take) {
  // Deviations from part 0's mean, which is near enough that nothing cancels.
  combine_parts<kSize>(
      partial, t, shared,
      [&](Index from, C origin, C mean, C squares, double& sum, double& other) {
        const double n = static_cast<double>(t.rows_of(from)),
                     d = static_cast<double>(mean) - static_cast<double>(origin);
        sum += d * n;
        other += static_cast<double>(squares) + d * d * n;
      },
      [&](Index c, C origin, double sum, double squares) {
        const double away = sum / static_cast<double>(t.rows), m2 = squares - sum * away;
        take(c, static_cast<double>(origin) + away, m2 < 0.0 ? 0.0 : m2);  // NaN stays
      });
}

/// Mean and squared deviations of each part of the rows: partial[parts][2][channels]; with
/// `arrivals` (last_block.h) the statistics, too. Deviations from a rough mean, of the part's first
/// rows, keep the sums small: no cancellation even where the mean is large.
template <class T, int kSize>
__global__ void __launch_bounds__(kColumnThreads, 1)
    moments(const T* __restrict__ x, ColumnTiles t, Compute<T>* partial, unsigned* arrivals,
            Statistics<Compute<T>> to) {
  using C = Compute<T>;
  __shared__ __align__(16) unsigned char shared[ColumnSums<C, kSize>::kBytes];
  const Index part = blockIdx.y;
  const auto place = column_place<kSize>(t);
  C shift[kSize] = {}, sums[2 * kSize] = {};
  if (place.inside) {
    constexpr int kRough = 4;
    const Index rough = min(t.rows_of(part), Index{kRough});
    const T* first = x + part * t.part_rows * t.channels + place.channel;
    Group<T, kSize> rows[kRough] = {};  // all asked for before one is looked at
#pragma unroll
    for (int r = 0; r < kRough; ++r) {
      if (r < rough) rows[r] = load_group<T, kSize>(first + r * t.channels);
    }
#pragma unroll
    for (int r = 0; r < kRough; ++r) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) shift[j] += static_cast<C>(rows[r].v[j]);
    }
    const C share = C(1) / static_cast<C>(rough);
#pragma unroll
    for (int j = 0; j < kSize; ++j) shift[j] *= share;
  }
  for_values<kSize, 8>(x, place, [&](int j, C value) {
    const C d = value - shift[j];
    sums[j] += d;
    sums[kSize + j] += d * d;
  });
  sum_over_rows<kColumnThreads>(sums, reinterpret_cast<C*>(shared), t.width);
  const C share = C(1) / static_cast<C>(t.rows_of(part));
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    const C mean = sums[j] * share, m2 = sums[kSize + j] - sums[j] * mean;
    sums[j] = shift[j] + mean;
    sums[kSize + j] = m2 < C(0) ? C(0) : m2;  // NaN stays
  }
  store_sums<kSize>(sums, partial, t, place);
  if (!arrivals || !last_block(arrivals + blockIdx.x, t.parts)) return;
  combine_moments<kSize>(partial, t, shared, [&](Index c, double mean, double squares) {
    to.take(c, mean, squares, t.rows);
  });
}

template <class C>
struct Normalisation {
  const C *mean, *inv_std, *variance;  ///< inv_std, or where it is null the variance of inference
  const C *gamma, *beta;               ///< optional
  C eps;
  bool relu;
  math::RectifierOf<C> rectifier;
};

/// With `partial` the statistics are those that moments() left; the first block of a tile writes
/// them.
template <class T, int kSize, bool kResidual>
__global__ void __launch_bounds__(kColumnThreads, kSize == 1 && sizeof(T) < 8 ? 2 : 1)
    normalise(const T* __restrict__ x, const T* __restrict__ residual, T* __restrict__ y,
              ColumnTiles t, const Compute<T>* __restrict__ partial, Statistics<Compute<T>> to,
              Normalisation<Compute<T>> how) {
  using C = Compute<T>;
  __shared__ __align__(16) unsigned char shared[ColumnSums<C, kSize>::kBytes];
  __shared__ ChannelPairs<C, kSize> found;
  const auto place = column_place<kSize, true>(t);
  C mean[kSize], scale[kSize], beta[kSize];
  if (partial) {
    combine_moments<kSize>(partial, t, shared, [&](Index c, double centre, double squares) {
      if (blockIdx.y == 0) to.take(c, centre, squares, t.rows);
      found.put(c, static_cast<C>(centre), to.inverse(squares, t.rows));
    });
    __syncthreads();
    found.get(place.channel, mean, scale);
  } else {
    load_channels(how.mean, place, C(0), mean);
    load_channels(how.inv_std ? how.inv_std : how.variance, place, C(1), scale);
    if (!how.inv_std) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) scale[j] = C(1) / sqrt(scale[j] + how.eps);
    }
    if (blockIdx.y == 0 && place.inside && static_cast<int>(threadIdx.x) < t.width) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        if (to.saved_mean) to.saved_mean[place.channel + j] = mean[j];
        if (to.saved_inv_std) to.saved_inv_std[place.channel + j] = scale[j];
      }
    }
  }
  load_channels(how.beta, place, C(0), beta);
  scale_by(how.gamma, place, scale);
  map_rows<kSize, kResidual>(x, residual, y, place, how.relu, how.rectifier,
                             [&](int j, C in, C add) {
                               const C value = normal(in, mean[j], scale[j], beta[j]);
                               return kResidual ? value + add : value;
                             });
}

/// Makes the statistics of sums over all ranks' batches.
template <class C>
__global__ void __launch_bounds__(kColumnThreads)
    finish_batch_norm(const double* sums, const double* square_sums, Index channels, Index count,
                      Statistics<C> to) {
  const Index threads = Index{gridDim.x} * blockDim.x;
  for (Index c = Index{blockIdx.x} * blockDim.x + threadIdx.x; c < channels; c += threads) {
    const double mean = sums[c] / static_cast<double>(count),
                 squares = square_sums[c] - sums[c] * mean;
    to.take(c, mean, squares < 0.0 ? 0.0 : squares, count);  // NaN stays
  }
}

Launch over_channels(CudaBackend& backend, Index channels) {
  return {.grid = {blocks_for(channels, kColumnThreads)},
          .block = {kColumnThreads},
          .stream = backend.handle()};
}

template <class T>
void forward(CudaBackend& backend, const BatchNormForward& args) {
  using C = Compute<T>;
  const RowsAndChannels matrix = rows_and_channels(args.x);
  const Index channels = matrix.channels;
  const T* x = args.x.data<T>();
  const T* residual = optional<T>(args.residual);
  T* y = optional<T>(args.y);
  Normalisation<C> how{.gamma = optional<C>(args.gamma),
                       .beta = optional<C>(args.beta),
                       .eps = static_cast<C>(args.eps),
                       .relu = args.rectifier.relu,
                       .rectifier = math::rectifier_of<C>(args.rectifier)};
  Statistics<C> to = statistics_of<C>(args);

  const auto run = [&]<int kSize>() {
    const auto second = residual ? normalise<T, kSize, true> : normalise<T, kSize, false>;
    const ColumnTiles t = column_tiles(backend, matrix, kSize, moments<T, kSize>, second);
    const Launch how_many = over_columns(backend, t);
    Tensor partial;
    if (args.training) {
      partial = partial_sums<C>(backend, t);
      launch(moments<T, kSize>, how_many, x, t, partial.data<C>(), y ? nullptr : backend.arrivals(),
             to);
    } else if (!to.running_mean) {
      how.mean = to.saved_mean;
      how.inv_std = to.saved_inv_std;
      to.saved_mean = to.saved_inv_std = nullptr;  // no copies
    } else {
      how.mean = to.running_mean;
      how.variance = to.running_var;
    }
    if (y) launch(second, how_many, x, residual, y, t, optional<C>(partial), to, how);
  };
  with_packs<T>(channels, run, x, residual, y);
}

template <class T>
void backward(CudaBackend& backend, const BatchNormBackward& args) {
  using C = Compute<T>;
  const RowsAndChannels matrix = rows_and_channels(args.x);
  const Index channels = matrix.channels;
  Gradient<T> from{.x = args.x.data<T>(),
                   .dy = args.dy.data<T>(),
                   .dy2 = optional<T>(args.dy2),
                   .mean = args.saved_mean.data<C>(),
                   .inv_std = args.saved_inv_std.data<C>(),
                   .gamma = optional<C>(args.gamma),
                   .beta = args.rectifier.relu ? optional<C>(args.beta) : nullptr,
                   .rectifier = math::rectifier_of<C>(args.rectifier)};
  if (args.rectifier.relu && !from.beta) from.y = args.y.data<T>();
  T* dx = optional<T>(args.dx);
  T* dresidual = optional<T>(args.dresidual);
  GradientResults<C> to{.inv_std = from.inv_std,
                        .gamma = from.gamma,
                        .dgamma = optional<C>(args.dgamma),
                        .dbeta = optional<C>(args.dbeta),
                        .sum = nullptr,
                        .normal_sum = nullptr,
                        .rows = matrix.rows,
                        .accumulate = args.accumulate,
                        .training = args.training};

  using Sums = BatchNormBackward::Sums;
  const bool given = args.sums == Sums::kGiven;
  const double* given_sum = given ? args.sum_dy.data<double>() : nullptr;
  const double* given_normal_sum = given ? args.sum_dy_xhat.data<double>() : nullptr;
  if (args.sums == Sums::kWritten) {  // are the only results
    to.dgamma = to.dbeta = nullptr;
    dx = nullptr;
    to.sum = args.sum_dy.data<double>();
    to.normal_sum = args.sum_dy_xhat.data<double>();
  }
  // Nothing follows: the sums' last block makes the results.
  const bool last = !given && !dx;
  const auto run = [&]<int kSize>() {
    constexpr auto kMasked = gradient_sums<T, kSize, true>;
    constexpr auto kPlain = gradient_sums<T, kSize, false>;
    constexpr auto kMaskedInput = input_gradient<T, kSize, true>;
    constexpr auto kPlainInput = input_gradient<T, kSize, false>;
    const bool mask = from.beta != nullptr, mask_input = mask && !dresidual;
    const auto first = mask ? kMasked : kPlain;
    const auto second = mask_input ? kMaskedInput : kPlainInput;
    const ColumnTiles t = column_tiles(backend, matrix, kSize, first, second);
    Launch how_many = over_columns(backend, t);
    Tensor partial;
    if (!given) {
      partial = partial_sums<C>(backend, t);
      launch(first, how_many, from, dresidual, t, partial.data<C>(),
             last ? backend.arrivals() : nullptr, to);
      if (last) return;
    }
    if (dresidual) {  // the masked sum is at hand
      from.dy = dresidual;
      from.dy2 = from.y = nullptr;
      from.beta = nullptr;
    }
    if (!dx) how_many.grid.y = 1;
    launch(second, how_many, from, dx, t, optional<C>(partial), given_sum, given_normal_sum, to);
  };
  with_packs<T>(channels, run, from.x, from.y, from.dy, from.dy2, dx, dresidual);
}

}  // namespace

void CudaBackend::issue(const BatchNormForward& args) {
  floating(args.x, [&](auto type) { forward<decltype(type)>(*this, args); });
}

void CudaBackend::issue(const BatchNormBackward& args) {
  floating(args.x, [&](auto type) { backward<decltype(type)>(*this, args); });
}

void CudaBackend::issue(const BatchNormFinish& args) {
  floating(args.saved_mean, [&](auto type) {
    using C = Compute<decltype(type)>;
    const Index channels = args.sum.elements();
    launch(finish_batch_norm<C>, over_channels(*this, channels), args.sum.data<double>(),
           args.square_sum.data<double>(), channels, args.count, statistics_of<C>(args));
  });
}

}  // namespace starling::cuda
