#pragma once

#include "kernels/cuda/column_tiles.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device.h"

// What batch_norm.cu (a batch norm as one operation) and batch_norm_steps.cu (its steps, one operation each) share.
namespace starling::cuda {

/// Statistics of a batch and where they go; running statistics are optional.
template <class C>
struct Statistics {
  C *saved_mean, *saved_inv_std, *running_mean, *running_var;
  std::int64_t* batches_tracked;
  double eps, momentum;

  /// From the mean and the sum of squared deviations of channel c's `rows` numbers.
  STARLING_HD void take(Index c, double mean, double squares, Index rows) const {
    const double n = static_cast<double>(rows), variance = squares / n;
    saved_mean[c] = static_cast<C>(mean);
    saved_inv_std[c] = static_cast<C>(1.0 / sqrt(variance + eps));
    if (running_mean) running_mean[c] = static_cast<C>((1.0 - momentum) * static_cast<double>(running_mean[c]) + momentum * mean);
    if (running_var) {
      const double unbiased = rows > 1 ? squares / (n - 1.0) : variance;
      running_var[c] = static_cast<C>((1.0 - momentum) * static_cast<double>(running_var[c]) + momentum * unbiased);
    }
    if (c == 0 && batches_tracked) ++*batches_tracked;
  }
};

/// From BatchNormForward or BatchNormFinish.
template <class C, class Args>
Statistics<C> statistics_of(const Args& args, Index channels, const char* operation) {
  return {.saved_mean = numbers<C>(args.saved_mean, channels, operation, "saved_mean"),
          .saved_inv_std = numbers<C>(args.saved_inv_std, channels, operation, "saved_inv_std"),
          .running_mean = optional_numbers<C>(args.running_mean, channels, operation, "running_mean"),
          .running_var = optional_numbers<C>(args.running_var, channels, operation, "running_var"),
          .batches_tracked = optional_numbers<std::int64_t>(args.batches_tracked, 1, operation, "batches_tracked"),
          .eps = args.eps,
          .momentum = args.momentum};
}

/// A channel group's numbers, or `otherwise` for each where there are none.
template <class C, int kSize>
__device__ __forceinline__ void load_channels(const C* from, Index channel, bool inside, C otherwise, C (&to)[kSize]) {
#pragma unroll
  for (int j = 0; j < kSize; ++j) to[j] = from && inside ? from[channel + j] : otherwise;
}

/// rows<kRows>() until `count` rows are done: kRows at a time, the last ones one by one.
template <int kRows, class Rows>
__device__ __forceinline__ void in_groups_of(Index count, Rows&& rows) {
#pragma unroll 1
  for (; count >= kRows; count -= kRows) rows.template operator()<kRows>();
#pragma unroll 1
  for (; count > 0; --count) rows.template operator()<1>();
}

/// Calls run with the width of a thread's loads: 16 bytes, or one element where the channels or a tensor's start do not allow that.
template <class T, class F, class... P>
void with_group(Index channels, F&& run, const P*... tensors) {
  if (channels % Pack<T>::kSize == 0 && aligned16(tensors...)) {
    run.template operator()<Pack<T>::kSize>();
  } else {
    run.template operator()<1>();
  }
}

/// (x - mean)·γ/σ + β: the form of the forward and the backward kernel, so that the backward pass finds the sign of y again. (Batch norms
/// in steps write y by scale and shift: there the two may disagree within rounding of zero.)
template <class C>
STARLING_HD C normal(C x, C mean, C scale, C beta) {
  return (x - mean) * scale + beta;
}

namespace detail {

/// Where the gradient before the normalisation comes from: dy + dy2, masked by y > 0 or by the sign that x gives.
template <class T>
struct Gradient {
  const T *x, *y, *dy, *dy2;  ///< y and dy2 are optional. No __restrict__: results may go where one of these was
  const Compute<T>*mean, *inv_std, *gamma, *beta;
};

/// What BatchNormBackward and its steps all have.
template <class T, class Args>
Gradient<T> gradient_of(const Args& args, Index rows, Index channels, const char* operation) {
  using C = Compute<T>;
  return {.x = args.x.template data<T>(),
          .dy = numbers<T>(args.dy, rows * channels, operation, "dy"),
          .mean = numbers<C>(args.saved_mean, channels, operation, "saved_mean"),
          .inv_std = numbers<C>(args.saved_inv_std, channels, operation, "saved_inv_std"),
          .gamma = optional_numbers<C>(args.gamma, channels, operation, "gamma")};
}

/// kRows rows of the masked gradient and of x, `stride` elements apart.
template <class T, int kSize, bool kMaskX, int kRows>
__device__ __forceinline__ void load_gradient(const Gradient<T>& from, Index at, Index stride, const Compute<T> (&mean)[kSize],
                                              const Compute<T> (&scale)[kSize], const Compute<T> (&beta)[kSize],
                                              Compute<T> (&g)[kRows][kSize], Compute<T> (&centred)[kRows][kSize]) {
  using C = Compute<T>;
  Group<T, kSize> x[kRows], y[kRows], dy[kRows], dy2[kRows];
#pragma unroll
  for (int u = 0; u < kRows; ++u) {
    x[u] = load_group<T, kSize>(from.x + at + u * stride);
    dy[u] = load_group<T, kSize>(from.dy + at + u * stride);
  }
  if (from.dy2) {
#pragma unroll
    for (int u = 0; u < kRows; ++u) dy2[u] = load_group<T, kSize>(from.dy2 + at + u * stride);
  }
  if (!kMaskX && from.y) {
#pragma unroll
    for (int u = 0; u < kRows; ++u) y[u] = load_group<T, kSize>(from.y + at + u * stride);
  }
#pragma unroll
  for (int u = 0; u < kRows; ++u) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const C value = static_cast<C>(x[u].v[j]);
      C sum = static_cast<C>(dy[u].v[j]);
      if (from.dy2) sum += static_cast<C>(dy2[u].v[j]);
      if constexpr (kMaskX) {
        sum = normal(value, mean[j], scale[j], beta[j]) > C(0) ? sum : C(0);
      } else if (from.y) {
        sum = static_cast<C>(y[u].v[j]) > C(0) ? sum : C(0);
      }
      g[u][j] = sum;
      centred[u][j] = value - mean[j];
    }
  }
}

/// Rows of one thread in one go, of both passes below: few where registers are short.
constexpr int kGradientRows = 2;

/// partial[parts][2][channels]: sums of g and of g·(x - mean) over each part; writes g to `dresidual` where it is given.
template <class T, int kSize, bool kMaskX>
__global__ void __launch_bounds__(kColumnThreads, 2)
    gradient_sums(Gradient<T> from, T* dresidual, ColumnTiles t, Compute<T>* __restrict__ partial) {
  using C = Compute<T>;
  __shared__ C shared[2 * kSize * kColumnThreads];
  const Index part = blockIdx.y;
  const ColumnPlace place = column_place<kSize>(t, part);
  C mean[kSize], scale[kSize] = {}, beta[kSize] = {}, sums[2 * kSize] = {};
  load_channels(from.mean, place.channel, place.inside, C(0), mean);
  if constexpr (kMaskX) {
    load_channels(from.beta, place.channel, place.inside, C(0), beta);
    load_channels(from.inv_std, place.channel, place.inside, C(0), scale);
#pragma unroll
    for (int j = 0; j < kSize; ++j) scale[j] *= from.gamma && place.inside ? from.gamma[place.channel + j] : C(1);
  }
  const Index stride = place.step * t.channels;
  Index at = place.first * t.channels + place.channel;
  const auto rows = [&]<int kRows>() {
    C g[kRows][kSize], centred[kRows][kSize];
    load_gradient<T, kSize, kMaskX, kRows>(from, at, stride, mean, scale, beta, g, centred);
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      Group<T, kSize> out;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        sums[j] += g[u][j];
        sums[kSize + j] += g[u][j] * centred[u][j];
        out.v[j] = static_cast<T>(g[u][j]);
      }
      if (dresidual) store_group<T, kSize>(dresidual + at + u * stride, out);
    }
    at += kRows * stride;
  };
  in_groups_of<kGradientRows>(place.count, rows);
  sum_over_rows<kColumnThreads>(sums, shared, t.width);
  store_partial<kSize>(sums, partial, part, t, place);
}

template <class T, int kSize, bool kMaskX>
__global__ void __launch_bounds__(kColumnThreads, 2)
    input_gradient(Gradient<T> from, T* dx, ColumnTiles t, const Compute<T>* __restrict__ slopes, const Compute<T>* __restrict__ offsets) {
  using C = Compute<T>;
  const Index part = t.parts - 1 - Index{blockIdx.y};
  const ColumnPlace place = column_place<kSize>(t, part);
  C mean[kSize], scale[kSize], beta[kSize] = {}, slope[kSize], offset[kSize];
  load_channels(from.mean, place.channel, place.inside, C(0), mean);
  load_channels(from.inv_std, place.channel, place.inside, C(0), scale);
  load_channels(slopes, place.channel, place.inside, C(0), slope);
  load_channels(offsets, place.channel, place.inside, C(0), offset);
  if constexpr (kMaskX) load_channels(from.beta, place.channel, place.inside, C(0), beta);
#pragma unroll
  for (int j = 0; j < kSize; ++j) scale[j] *= from.gamma && place.inside ? from.gamma[place.channel + j] : C(1);
  const Index stride = place.step * t.channels;
  Index at = (place.first + (place.count - 1) * place.step) * t.channels + place.channel;
  const auto rows = [&]<int kRows>() {
    C g[kRows][kSize], centred[kRows][kSize];
    load_gradient<T, kSize, kMaskX, kRows>(from, at, -stride, mean, scale, beta, g, centred);
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      Group<T, kSize> out;
#pragma unroll
      for (int j = 0; j < kSize; ++j) out.v[j] = static_cast<T>(g[u][j] * scale[j] + (centred[u][j] * slope[j] + offset[j]));
      store_group<T, kSize>(dx + at - u * stride, out);
    }
    at -= kRows * stride;
  };
  in_groups_of<kGradientRows>(place.count, rows);
}

}  // namespace detail

}  // namespace starling::cuda
