#include "core/operations/norms.h"
#include "kernels/cuda/operations/batch_norm_parts.h"

// The steps of a batch norm's forward pass whose sums ranks add up: sums per channel, and what they
// say of the batch norm.
namespace starling::cuda {
namespace {

/// Where the sums of x and x² go, from those of x - origin.
template <class T, class S>
struct ChannelTotals {
  /// [C]; null: zero. A row of x makes fp64's sums exact to the rounding of small numbers
  const T* origin;
  S *first, *second;
  Index rows;
  STARLING_HD void take(Index c, double sum, double squares) const {
    const double from = origin ? static_cast<double>(static_cast<Compute<T>>(origin[c])) : 0.0,
                 n = static_cast<double>(rows);
    first[c] = static_cast<S>(sum + n * from);
    second[c] = static_cast<S>(squares + from * (2.0 * sum + n * from));
  }
};

/// Sums and sums of squares over all rows; partial[parts][2][channels] and arrivals: last_block.h.
template <class T, int kSize, class S>
__global__ void __launch_bounds__(kColumnThreads, 1)
    channel_sums(const T* __restrict__ x, ColumnTiles t, Compute<T>* partial, unsigned* arrivals,
                 ChannelTotals<T, S> to) {
  using C = Compute<T>;
  __shared__ __align__(16) unsigned char shared[ColumnSums<C, kSize>::kBytes];
  const auto place = column_place<kSize>(t);
  C origin[kSize] = {}, sums[2 * kSize] = {};
  if (to.origin && place.inside) {
    const auto first = load_group<T, kSize>(to.origin + place.channel);
#pragma unroll
    for (int j = 0; j < kSize; ++j) origin[j] = static_cast<C>(first.v[j]);
  }
  for_values<kSize, 4>(x, place, [&](int j, C value) {
    const C d = value - origin[j];
    sums[j] += d;
    sums[kSize + j] += d * d;
  });
  sum_columns<kSize>(sums, partial, arrivals, t, place, shared, to);
}

template <class C, class S>
struct Finish {
  const S *sum, *square_sum;
  Statistics<C> statistics;
  Index channels, count;
};
template <class C, class S>
__global__ void __launch_bounds__(kColumnThreads) finish_batch_norm(Finish<C, S> f) {
  const Index threads = Index{gridDim.x} * blockDim.x;
  for (Index c = Index{blockIdx.x} * blockDim.x + threadIdx.x; c < f.channels; c += threads) {
    const double n = static_cast<double>(f.count), sum = static_cast<double>(f.sum[c]),
                 mean = sum / n;
    double squares = static_cast<double>(f.square_sum[c]) - sum * mean;
    if (squares < 0.0) squares = 0.0;  // NaN stays
    f.statistics.take(c, mean, squares, f.count);
  }
}

template <class T>
void sums(CudaBackend& backend, const ChannelSums& args) {
  using C = Compute<T>;
  const RowsAndChannels matrix = rows_and_channels(args.x);
  const Index channels = matrix.channels;
  const T* x = args.x.data<T>();
  as_sums<C>(args.sum, [&](auto number) {
    using S = decltype(number);
    const ChannelTotals<T, S> to{.origin = sizeof(S) > sizeof(C) && matrix.rows > 0 ? x : nullptr,
                                 .first = args.sum.data<S>(),
                                 .second = args.square_sum.data<S>(),
                                 .rows = matrix.rows};
    const auto run = [&]<int kSize>() {
      const ColumnTiles t = column_tiles(backend, matrix, kSize, channel_sums<T, kSize, S>);
      const Tensor partial = partial_sums<C>(backend, t);
      launch(channel_sums<T, kSize, S>, over_columns(backend, t), x, t, partial.data<C>(),
             backend.arrivals(), to);
    };
    with_packs<T>(channels, run, x);
  });
}

template <class C, class S>
void finish(CudaBackend& backend, const BatchNormFinish& args) {
  const Index channels = args.sum.elements();
  const Finish<C, S> f{.sum = args.sum.data<S>(),
                       .square_sum = args.square_sum.data<S>(),
                       .statistics = statistics_of<C>(args),
                       .channels = channels,
                       .count = args.count};
  launch(finish_batch_norm<C, S>,
         {.grid = {blocks_for(channels, kColumnThreads)},
          .block = {kColumnThreads},
          .stream = backend.handle()},
         f);
}

}  // namespace

void CudaBackend::issue(const ChannelSums& args) {
  floating(args.x, [&](auto type) { sums<decltype(type)>(*this, args); });
}

void CudaBackend::issue(const BatchNormFinish& args) {
  if (args.saved_mean.dtype() == DType::kFloat64)
    finish<double, double>(*this, args);
  else
    as_sums<float>(args.sum, [&](auto number) { finish<float, decltype(number)>(*this, args); });
}

}  // namespace starling::cuda
