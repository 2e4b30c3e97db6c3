#include "core/operations/norms.h"
#include "kernels/cuda/operations/batch_norm_parts.h"

// Batch normalisation in two kernels: sums over parts of the rows, which the block that arrives
// last combines (with the running statistics), and the elementwise pass. That pass walks the rows
// from the last to the first, as the first kernel has left the last ones in the cache.
namespace starling::cuda {
namespace {

/// Mean and squared deviations of each part of the rows (partial[parts][2][channels]), and of the
/// whole. Deviations from a rough mean, of the part's first rows, keep the sums small: no
/// cancellation even where the mean is large.
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
  // Deviations from part 0's mean, which is near enough that nothing cancels.
  sum_over_parts<kSize>(
      sums, partial, arrivals, t, place, shared,
      [&](Index from, C origin, C mean, C squares, double& sum, double& other) {
        const double n = static_cast<double>(t.rows_of(from)),
                     d = static_cast<double>(mean) - static_cast<double>(origin);
        sum += d * n;
        other += static_cast<double>(squares) + d * d * n;
      },
      [&](Index c, C origin, double sum, double squares) {
        const double away = sum / static_cast<double>(t.rows), m2 = squares - sum * away;
        to.take(c, static_cast<double>(origin) + away, m2 < 0.0 ? 0.0 : m2, t.rows);
      });
}

template <class C>
struct Normalisation {
  const C *mean, *inv_std, *variance;  ///< inv_std, or where it is null the variance of inference
  const C *gamma, *beta;               ///< optional
  C *saved_mean, *saved_inv_std;       ///< copies of inference's statistics, optional
  C eps;
  bool relu;
  math::RectifierOf<C> rectifier;
};

template <class T, int kSize, bool kResidual>
__global__ void __launch_bounds__(kColumnThreads, 1)
    normalise(const T* __restrict__ x, const T* __restrict__ residual, T* __restrict__ y,
              ColumnTiles t, Normalisation<Compute<T>> how) {
  using C = Compute<T>;
  const auto place = column_place<kSize, true>(t);
  C mean[kSize], scale[kSize], beta[kSize];
  load_channels(how.mean, place, C(0), mean);
  load_channels(how.beta, place, C(0), beta);
  load_channels(how.inv_std ? how.inv_std : how.variance, place, C(1), scale);
  if (!how.inv_std) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) scale[j] = C(1) / sqrt(scale[j] + how.eps);
  }
  if (is_for_channels(place, t)) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      if (how.saved_mean) how.saved_mean[place.channel + j] = mean[j];
      if (how.saved_inv_std) how.saved_inv_std[place.channel + j] = scale[j];
    }
  }
  scale_by(how.gamma, place, scale);
  map_rows<kSize, kResidual>(x, residual, y, place, how.relu, how.rectifier,
                             [&](int j, C in, C add) {
                               const C value = normal(in, mean[j], scale[j], beta[j]);
                               return kResidual ? value + add : value;
                             });
}

/// Results that the gradient's sums of a channel become: the parameters' gradients, and the line of
/// input_gradient().
template <class C>
struct GradientResults {
  const C *inv_std, *gamma;
  C *dgamma, *dbeta;  ///< optional
  C *slope, *offset;
  Index rows;
  bool accumulate, training;

  /// Takes the sums of g and of g·(x - mean), or of g·x̂.
  STARLING_HD void take(Index c, double g, double product) const {
    take_normal(c, g, product * static_cast<double>(inv_std[c]));
  }
  STARLING_HD void take_normal(Index c, double g, double gx) const {
    const double inv = static_cast<double>(inv_std[c]),
                 factor = (gamma ? static_cast<double>(gamma[c]) : 1.0) * inv;
    const double share = 1.0 / static_cast<double>(rows);
    if (dgamma)
      dgamma[c] = static_cast<C>((accumulate ? static_cast<double>(dgamma[c]) : 0.0) + gx);
    if (dbeta) dbeta[c] = static_cast<C>((accumulate ? static_cast<double>(dbeta[c]) : 0.0) + g);
    // dx = γ/σ (g - mean(g) - x̂·mean(g·x̂)); with constant statistics only the first term is left.
    slope[c] = static_cast<C>(training ? -factor * inv * gx * share : 0.0);
    offset[c] = static_cast<C>(training ? -factor * g * share : 0.0);
  }
};
/// Takes sums that are given.
template <class C>
__global__ void __launch_bounds__(kColumnThreads)
    take_sums(GradientResults<C> to, const double* sum, const double* normal_sum, Index channels) {
  const Index threads = Index{gridDim.x} * blockDim.x;
  for (Index c = Index{blockIdx.x} * blockDim.x + threadIdx.x; c < channels; c += threads)
    to.take_normal(c, sum[c], normal_sum[c]);
}

/// Destinations of requested sums.
template <class C>
struct GradientSums {
  const C* inv_std;
  double *first, *second;
  STARLING_HD void take(Index c, double sum, double other) const {
    first[c] = sum;
    second[c] = other * static_cast<double>(inv_std[c]);
  }
};

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
  C* running_mean = optional<C>(args.running_mean);
  C* running_var = optional<C>(args.running_var);

  const auto run = [&]<int kSize>() {
    const auto second = residual ? normalise<T, kSize, true> : normalise<T, kSize, false>;
    const ColumnTiles t = column_tiles(backend, matrix, kSize, moments<T, kSize>, second);
    const Launch how_many = over_columns(backend, t);
    if (args.training) {
      const auto statistics = statistics_of<C>(args);
      const Tensor partial = partial_sums<C>(backend, t);
      launch(moments<T, kSize>, how_many, x, t, partial.data<C>(), backend.arrivals(), statistics);
      how.mean = statistics.saved_mean;
      how.inv_std = statistics.saved_inv_std;
    } else if (!running_mean) {
      how.mean = args.saved_mean.data<C>();
      how.inv_std = args.saved_inv_std.data<C>();
    } else {
      how.mean = running_mean;
      how.variance = running_var;
      how.saved_mean = optional<C>(args.saved_mean);
      how.saved_inv_std = optional<C>(args.saved_inv_std);
    }
    if (y) launch(second, how_many, x, residual, y, t, how);
  };
  with_packs<T>(channels, run, x, residual, y);
}

template <class T>
void backward(CudaBackend& backend, const BatchNormBackward& args) {
  using C = Compute<T>;
  const RowsAndChannels matrix = rows_and_channels(args.x);
  const Index channels = matrix.channels;
  detail::Gradient<T> from{.x = args.x.data<T>(),
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
                        .rows = matrix.rows,
                        .accumulate = args.accumulate,
                        .training = args.training};

  using Sums = BatchNormBackward::Sums;
  const auto run = [&]<int kSize>() {
    if (args.sums == Sums::kWritten) {
      using To = GradientSums<C>;
      const auto sums = from.beta ? detail::gradient_sums<T, kSize, true, To>
                                  : detail::gradient_sums<T, kSize, false, To>;
      const ColumnTiles t = column_tiles(backend, matrix, kSize, sums);
      const Tensor partial = partial_sums<C>(backend, t);
      return launch(sums, over_columns(backend, t), from, dresidual, t, partial.data<C>(),
                    backend.arrivals(),
                    To{from.inv_std, args.sum_dy.data<double>(), args.sum_dy_xhat.data<double>()});
    }
    constexpr auto kMasked = detail::gradient_sums<T, kSize, true, GradientResults<C>>;
    constexpr auto kPlain = detail::gradient_sums<T, kSize, false, GradientResults<C>>;
    constexpr auto kMaskedInput = detail::input_gradient<T, kSize, true>;
    constexpr auto kPlainInput = detail::input_gradient<T, kSize, false>;
    const bool mask = from.beta != nullptr, mask_input = mask && !dresidual;
    const auto first = mask ? kMasked : kPlain;
    const auto second = mask_input ? kMaskedInput : kPlainInput;
    const ColumnTiles t = column_tiles(backend, matrix, kSize, first, second);
    const Launch how_many = over_columns(backend, t);
    // Two vectors per channel, padded for 16-byte loads of partial sums.
    const Index vector = (channels + 3) / 4 * 4;
    const Tensor scratch = partial_sums<C>(backend, t, 2 * vector);
    to.slope = scratch.data<C>();
    to.offset = to.slope + vector;
    if (args.sums == Sums::kGiven) {
      launch(take_sums<C>, over_channels(backend, channels), to, args.sum_dy.data<double>(),
             args.sum_dy_xhat.data<double>(), channels);
    } else {
      launch(first, how_many, from, dresidual, t, to.offset + vector, backend.arrivals(), to);
    }
    if (!dx) return;
    if (dresidual) {  // the masked sum is at hand
      from.dy = dresidual;
      from.dy2 = from.y = nullptr;
      from.beta = nullptr;
    }
    launch(second, how_many, from, dx, t, to.slope, to.offset);
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
