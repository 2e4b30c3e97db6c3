#include "kernels/cuda/batch_norm_parts.h"
#include "kernels/cuda/column_tiles.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/running_statistics.h"

// Batch normalisation in three kernels: sums over parts of the rows, their combination, and the elementwise pass. That pass walks the rows
// from the last to the first, as the first kernel has left the last ones in the cache.
namespace starling::cuda {
namespace {

constexpr int kThreads = kColumnThreads;

/// Mean and squared deviations of each part of the rows: partial[parts][2][channels]. Deviations from a rough mean, of the part's first
/// rows, keep the sums small: no cancellation even where the mean is large.
template <class T, int kSize>
__global__ void __launch_bounds__(kThreads, 3) moments(const T* __restrict__ x, ColumnTiles t, Compute<T>* __restrict__ partial) {
  using C = Compute<T>;
  constexpr int kUnroll = 4;
  __shared__ C shared[2 * kSize * kThreads];
  const Index part = blockIdx.y;
  const ColumnPlace place = column_place<kSize>(t, part);
  C shift[kSize] = {}, sums[2 * kSize] = {};
  if (place.inside) {
    const Index rough = min(t.rows_of(part), Index{4});
    const T* first = x + part * t.part_rows * t.channels + place.channel;
    for (Index r = 0; r < rough; ++r) {
      const auto g = load_group<T, kSize>(first + r * t.channels);
#pragma unroll
      for (int j = 0; j < kSize; ++j) shift[j] += static_cast<C>(g.v[j]);
    }
    const C share = C(1) / static_cast<C>(rough);
#pragma unroll
    for (int j = 0; j < kSize; ++j) shift[j] *= share;
  }
  const auto take = [&](const Group<T, kSize>& g) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const C d = static_cast<C>(g.v[j]) - shift[j];
      sums[j] += d;
      sums[kSize + j] += d * d;
    }
  };
  const T* row = x + place.first * t.channels + place.channel;
  const Index stride = place.step * t.channels;
  Index left = place.count;
#pragma unroll 1
  for (; left >= kUnroll; left -= kUnroll, row += kUnroll * stride) {
    Group<T, kSize> g[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) g[u] = load_group<T, kSize>(row + u * stride);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) take(g[u]);
  }
#pragma unroll 1
  for (; left > 0; --left, row += stride) take(load_group<T, kSize>(row));
  sum_over_rows<kThreads>(sums, shared, t.width);
  if (!place.inside || static_cast<int>(threadIdx.x) >= t.width) return;
  const C share = C(1) / static_cast<C>(t.rows_of(part));
  C* out = partial + 2 * part * t.channels + place.channel;
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    const C mean = sums[j] * share, m2 = sums[kSize + j] - sums[j] * mean;
    out[j] = shift[j] + mean;
    out[t.channels + j] = m2 < C(0) ? C(0) : m2;  // NaN stays
  }
}

/// The moments of the whole from those of its parts.
template <class C>
__global__ void __launch_bounds__(kCombineThreads, 2) combine_moments(const C* __restrict__ partial, ColumnTiles t, Statistics<C> to) {
  __shared__ double shared[kCombineThreads], means[kCombineColumns];
  const CombinePlace place = combine_place(t.channels);
  const double n = static_cast<double>(t.rows);
  double sum[1] = {0.0};
  if (place.inside) {
#pragma unroll 4
    for (Index part = place.first; part < t.parts; part += place.step) {
      sum[0] += static_cast<double>(partial[2 * part * t.channels + place.channel]) * static_cast<double>(t.rows_of(part));
    }
  }
  sum_over_rows<kCombineThreads>(sum, shared, kCombineColumns);
  if (place.first == 0) means[threadIdx.x] = sum[0] / n;
  __syncthreads();
  const double mean = means[threadIdx.x % kCombineColumns];
  sum[0] = 0.0;
  if (place.inside) {
#pragma unroll 4
    for (Index part = place.first; part < t.parts; part += place.step) {
      const double d = static_cast<double>(partial[2 * part * t.channels + place.channel]) - mean;
      sum[0] += static_cast<double>(partial[(2 * part + 1) * t.channels + place.channel]) + d * d * static_cast<double>(t.rows_of(part));
    }
  }
  sum_over_rows<kCombineThreads>(sum, shared, kCombineColumns);
  if (!place.owner) return;
  to.take(place.channel, mean, sum[0], t.rows);
}

template <class C>
struct Normalisation {
  const C *mean, *inv_std, *variance;  ///< inv_std, or where it is null the variance of inference
  const C *gamma, *beta;               ///< optional
  C *saved_mean, *saved_inv_std;       ///< copies of inference's statistics, optional
  C eps;
  bool relu;
};

template <class T, int kSize, bool kResidual>
__global__ void __launch_bounds__(kThreads, 3)
    normalise(const T* __restrict__ x, const T* __restrict__ residual, T* __restrict__ y, ColumnTiles t, Normalisation<Compute<T>> how) {
  using C = Compute<T>;
  constexpr int kUnroll = kResidual ? 2 : 4;
  const Index part = t.parts - 1 - Index{blockIdx.y};
  const ColumnPlace place = column_place<kSize>(t, part);
  C mean[kSize], scale[kSize], beta[kSize];
  load_channels(how.mean, place.channel, place.inside, C(0), mean);
  load_channels(how.beta, place.channel, place.inside, C(0), beta);
  load_channels(how.inv_std ? how.inv_std : how.variance, place.channel, place.inside, C(1), scale);
  if (!how.inv_std) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) scale[j] = C(1) / sqrt(scale[j] + how.eps);
  }
  if (part == 0 && place.inside && static_cast<int>(threadIdx.x) < t.width) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      if (how.saved_mean) how.saved_mean[place.channel + j] = mean[j];
      if (how.saved_inv_std) how.saved_inv_std[place.channel + j] = scale[j];
    }
  }
#pragma unroll
  for (int j = 0; j < kSize; ++j) scale[j] *= how.gamma && place.inside ? how.gamma[place.channel + j] : C(1);

  const Index stride = place.step * t.channels;
  Index at = (place.first + (place.count - 1) * place.step) * t.channels + place.channel;
  const auto rows = [&]<int kRows>() {
    Group<T, kSize> in[kRows];
    [[maybe_unused]] Group<T, kSize> add[kRows];
#pragma unroll
    for (int u = 0; u < kRows; ++u) in[u] = load_group<T, kSize>(x + at - u * stride);
    if constexpr (kResidual) {
#pragma unroll
      for (int u = 0; u < kRows; ++u) add[u] = load_group<T, kSize>(residual + at - u * stride);
    }
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        C value = normal(static_cast<C>(in[u].v[j]), mean[j], scale[j], beta[j]);
        if constexpr (kResidual) value += static_cast<C>(add[u].v[j]);
        in[u].v[j] = static_cast<T>(how.relu && value < C(0) ? C(0) : value);
      }
      store_group<T, kSize>(y + at - u * stride, in[u]);
    }
    at -= kRows * stride;
  };
  in_groups_of<kUnroll>(place.count, rows);
}

template <class C>
struct GradientResults {
  const C *inv_std, *gamma;
  C *dgamma, *dbeta;  ///< optional
  C *slope, *offset;  ///< of the second pass: dx = g·γ/σ + (x - mean)·slope + offset
  bool accumulate, training;
};

template <class C>
__global__ void __launch_bounds__(kCombineThreads, 2)
    combine_gradients(const C* __restrict__ partial, ColumnTiles t, GradientResults<C> to) {
  __shared__ double shared[2 * kCombineThreads];
  const CombinePlace place = combine_place(t.channels);
  double sum[2];
  combine_sums(partial, t, place, sum, shared);
  if (!place.owner) return;
  const Index c = place.channel;
  const double inv = static_cast<double>(to.inv_std[c]), factor = (to.gamma ? static_cast<double>(to.gamma[c]) : 1.0) * inv;
  const double g = sum[0], gx = sum[1] * inv, share = 1.0 / static_cast<double>(t.rows);
  if (to.dgamma) to.dgamma[c] = static_cast<C>((to.accumulate ? static_cast<double>(to.dgamma[c]) : 0.0) + gx);
  if (to.dbeta) to.dbeta[c] = static_cast<C>((to.accumulate ? static_cast<double>(to.dbeta[c]) : 0.0) + g);
  // dx = γ/σ (g - mean(g) - x̂·mean(g·x̂)); with constant statistics only the first term is left.
  to.slope[c] = static_cast<C>(to.training ? -factor * inv * gx * share : 0.0);
  to.offset[c] = static_cast<C>(to.training ? -factor * g * share : 0.0);
}

template <class T>
void forward(CudaBackend& backend, const BatchNormForward& args) {
  using C = Compute<T>;
  constexpr const char* kName = "batch norm forward";
  const auto [rows, channels] = rows_and_channels(args.x, kName);
  const Index elements = rows * channels;
  const T* x = args.x.data<T>();
  const T* residual = optional_numbers<T>(args.residual, elements, kName, "residual");
  T* y = numbers<T>(args.y, elements, kName, "y");
  Normalisation<C> how{.gamma = optional_numbers<C>(args.gamma, channels, kName, "gamma"),
                       .beta = optional_numbers<C>(args.beta, channels, kName, "beta"),
                       .eps = static_cast<C>(args.eps),
                       .relu = args.relu};
  C* running_mean = optional_numbers<C>(args.running_mean, channels, kName, "running_mean");
  C* running_var = optional_numbers<C>(args.running_var, channels, kName, "running_var");

  const auto run = [&]<int kSize>() {
    const ColumnTiles t = column_tiles(rows, channels, kSize, backend.info().multiprocessors);
    const Launch how_many{.grid = t.grid(), .block = {kThreads}, .stream = backend.handle()};
    if (args.training) {
      const auto statistics = statistics_of<C>(args, channels, kName);
      const Tensor partial = backend.scratch(Index{2} * t.parts * channels, DTypeOf<C>::value);
      launch(moments<T, kSize>, how_many, x, t, partial.data<C>());
      launch(combine_moments<C>, {.grid = {combine_blocks(channels)}, .block = {kCombineThreads}, .stream = backend.handle()},
             partial.data<C>(), t, statistics);
      how.mean = statistics.saved_mean;
      how.inv_std = statistics.saved_inv_std;
    } else {
      require(running_mean && running_var, "cuda", "batch norm forward: inference needs the running statistics");
      how.mean = running_mean;
      how.variance = running_var;
      how.saved_mean = optional_numbers<C>(args.saved_mean, channels, kName, "saved_mean");
      how.saved_inv_std = optional_numbers<C>(args.saved_inv_std, channels, kName, "saved_inv_std");
    }
    launch(residual ? normalise<T, kSize, true> : normalise<T, kSize, false>, how_many, x, residual, y, t, how);
  };
  with_group<T>(channels, run, x, residual, y);
}

template <class T>
void backward(CudaBackend& backend, const BatchNormBackward& args) {
  using C = Compute<T>;
  constexpr const char* kName = "batch norm backward";
  const auto [rows, channels] = rows_and_channels(args.x, kName);
  const Index elements = rows * channels;
  detail::Gradient<T> from = detail::gradient_of<T>(args, rows, channels, kName);
  from.dy2 = optional_numbers<T>(args.dy2, elements, kName, "dy2");
  from.beta = args.relu ? optional_numbers<C>(args.beta, channels, kName, "beta") : nullptr;
  if (args.relu && !from.beta) from.y = numbers<T>(args.y, elements, kName, "y");
  T* dx = optional_numbers<T>(args.dx, elements, kName, "dx");
  T* dresidual = optional_numbers<T>(args.dresidual, elements, kName, "dresidual");
  GradientResults<C> to{.inv_std = from.inv_std,
                        .gamma = from.gamma,
                        .dgamma = optional_numbers<C>(args.dgamma, channels, kName, "dgamma"),
                        .dbeta = optional_numbers<C>(args.dbeta, channels, kName, "dbeta"),
                        .accumulate = args.accumulate,
                        .training = args.training};

  const auto run = [&]<int kSize>() {
    const ColumnTiles t = column_tiles(rows, channels, kSize, backend.info().multiprocessors);
    const Launch how_many{.grid = t.grid(), .block = {kThreads}, .stream = backend.handle()};
    const Tensor scratch = backend.scratch((Index{2} * t.parts + 2) * channels, DTypeOf<C>::value);
    to.slope = scratch.data<C>();
    to.offset = to.slope + channels;
    C* partial = to.offset + channels;
    launch(from.beta ? detail::gradient_sums<T, kSize, true> : detail::gradient_sums<T, kSize, false>, how_many, from, dresidual, t,
           partial);
    launch(combine_gradients<C>, {.grid = {combine_blocks(channels)}, .block = {kCombineThreads}, .stream = backend.handle()}, partial, t,
           to);
    if (!dx) return;
    if (dresidual) {  // the masked sum is at hand
      from.dy = dresidual;
      from.dy2 = from.y = nullptr;
      from.beta = nullptr;
    }
    launch(from.beta ? detail::input_gradient<T, kSize, true> : detail::input_gradient<T, kSize, false>, how_many, from, dx, t, to.slope,
           to.offset);
  };
  with_group<T>(channels, run, from.x, from.y, from.dy, from.dy2, dx, dresidual);
}

}  // namespace

void CudaBackend::batch_norm_forward(const BatchNormForward& args) {
  if (cudnn_) {
    const LeavesStatistics scope(*this, args.x, args.residual, args.gamma, args.beta, args.y, args.running_mean, args.running_var,
                                 args.batches_tracked, args.saved_mean, args.saved_inv_std);
    if (cudnn_->batch_norm_forward(args, handle())) return statistics_->add(args, current_stream());
  }
  floating(args.x, "batch norm forward", [&](auto type) { forward<decltype(type)>(*this, args); });
}

void CudaBackend::batch_norm_backward(const BatchNormBackward& args) {
  if (cudnn_ && cudnn_->batch_norm_backward(args, handle())) return;
  floating(args.x, "batch norm backward", [&](auto type) { backward<decltype(type)>(*this, args); });
}

}  // namespace starling::cuda
