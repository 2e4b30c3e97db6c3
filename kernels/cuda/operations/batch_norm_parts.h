#pragma once

#include <algorithm>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/column_tiles.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/runtime/launch.h"

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

/// Blocks of one launch that the device holds at once, where both kernels of an operation are cut the same way: then the second one finds
/// in the cache what the first one has read last.
template <class First, class... More>
Index resident_on(const CudaBackend& backend, First first, More... more) {
  const int each = std::min({resident_blocks(first, kColumnThreads), resident_blocks(more, kColumnThreads)...});
  return Index{std::max(backend.info().multiprocessors, 1)} * each;
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

/// Rows of one thread that are on their way at once, of both passes below; twice as many are where x and dy are all.
constexpr int kGradientRows = 2;

template <class T, int kSize>
struct GradientRows {
  Coming<T, kSize> x[kGradientRows], dy[kGradientRows], dy2[kGradientRows], y[kGradientRows];
};

/// The first n rows from `at` on, `stride` elements apart.
template <bool kAll, bool kMaskX, int kSize, class T>
__device__ __forceinline__ GradientRows<T, kSize> load_gradient(const Gradient<T>& from, Index at, Index stride, int n) {
  GradientRows<T, kSize> rows;
#pragma unroll
  for (int u = 0; u < kGradientRows; ++u) {
    if (!kAll && u >= n) continue;
    rows.x[u].ask_for(from.x + at + u * stride);
    rows.dy[u].ask_for(from.dy + at + u * stride);
  }
  if (from.dy2) {
#pragma unroll
    for (int u = 0; u < kGradientRows; ++u) {
      if (kAll || u < n) rows.dy2[u].ask_for(from.dy2 + at + u * stride);
    }
  }
  if (!kMaskX && from.y) {
#pragma unroll
    for (int u = 0; u < kGradientRows; ++u) {
      if (kAll || u < n) rows.y[u].ask_for(from.y + at + u * stride);
    }
  }
  return rows;
}

/// The masked gradient of row u, and x without its mean.
template <bool kMaskX, class T, int kSize, class C>
__device__ __forceinline__ void masked_gradient(const Gradient<T>& from, const GradientRows<T, kSize>& rows, int u, const C (&mean)[kSize],
                                                const C (&scale)[kSize], const C (&beta)[kSize], C (&g)[kSize], C (&centred)[kSize]) {
  const auto x = rows.x[u].group(), dy = rows.dy[u].group(), dy2 = rows.dy2[u].group(), y = rows.y[u].group();
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    const C value = static_cast<C>(x.v[j]);
    C sum = static_cast<C>(dy.v[j]);
    if (from.dy2) sum += static_cast<C>(dy2.v[j]);
    if constexpr (kMaskX) {
      sum = normal(value, mean[j], scale[j], beta[j]) > C(0) ? sum : C(0);
    } else if (from.y) {
      sum = static_cast<C>(y.v[j]) > C(0) ? sum : C(0);
    }
    g[j] = sum;
    centred[j] = value - mean[j];
  }
}

/// Sums of g and of g·(x - mean) over all rows, for to.take(channel, the one, the other); writes g to `dresidual` where it is given.
/// partial[parts][2][channels] and arrivals: last_block.h.
template <class T, int kSize, bool kMaskX, class To>
__global__ void __launch_bounds__(kColumnThreads, 1)
    gradient_sums(Gradient<T> from, T* dresidual, ColumnTiles t, Compute<T>* partial, unsigned* arrivals, To to) {
  using C = Compute<T>;
  __shared__ __align__(16) unsigned char shared[ColumnSums<C, kSize>::kBytes];
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
  const Index stride = place.step * t.channels, start = place.first * t.channels + place.channel;
  in_flight<kGradientRows>(
      place.count,
      [&]<bool kAll>(Index first, int n) { return load_gradient<kAll, kMaskX, kSize>(from, start + first * stride, stride, n); },
      [&]<bool kAll>(const GradientRows<T, kSize>& rows, Index first, int n) {
#pragma unroll
        for (int u = 0; u < kGradientRows; ++u) {
          if (!kAll && u >= n) continue;
          C g[kSize], centred[kSize];
          masked_gradient<kMaskX>(from, rows, u, mean, scale, beta, g, centred);
          Group<T, kSize> out;
#pragma unroll
          for (int j = 0; j < kSize; ++j) {
            sums[j] += g[j];
            sums[kSize + j] += g[j] * centred[j];
            out.v[j] = static_cast<T>(g[j]);
          }
          if (dresidual) store_group<T, kSize>(dresidual + start + (first + u) * stride, out);
        }
      });
  let_next_kernel_come();
  sum_over_rows<kColumnThreads>(sums, reinterpret_cast<C*>(shared), t.width);
  store_partial<kSize>(sums, partial, part, t, place);
  if (!last_block(arrivals + blockIdx.x, t.parts)) return;
  combine_parts<C, kSize>(partial, t, shared, AddParts{}, [&](Index c, C, double sum, double product) { to.take(c, sum, product); });
}

/// dx = g·γ/σ + (x - mean)·slope + offset, with what lines.line(channel, slope, offset) says. One thread for each channel calls
/// lines.once(channel), for what else is to be written there.
template <class T, int kSize, bool kMaskX, class Lines>
__global__ void __launch_bounds__(kColumnThreads, 1) input_gradient(Gradient<T> from, T* dx, ColumnTiles t, Lines lines) {
  using C = Compute<T>;
  wait_for_previous_kernel();
  const Index part = t.parts - 1 - Index{blockIdx.y};
  const ColumnPlace place = column_place<kSize>(t, part);
  C mean[kSize], scale[kSize], beta[kSize] = {}, slope[kSize] = {}, offset[kSize] = {};
  load_channels(from.mean, place.channel, place.inside, C(0), mean);
  load_channels(from.inv_std, place.channel, place.inside, C(0), scale);
  if constexpr (kMaskX) load_channels(from.beta, place.channel, place.inside, C(0), beta);
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    scale[j] *= from.gamma && place.inside ? from.gamma[place.channel + j] : C(1);
    if (place.inside) lines.line(place.channel + j, slope[j], offset[j]);
  }
  if (part == 0 && place.inside && static_cast<int>(threadIdx.x) < t.width) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) lines.once(place.channel + j);
  }
  const Index stride = place.step * t.channels;
  const Index start = (place.first + (place.count - 1) * place.step) * t.channels + place.channel;
  in_flight<kGradientRows>(
      place.count,
      [&]<bool kAll>(Index first, int n) { return load_gradient<kAll, kMaskX, kSize>(from, start - first * stride, -stride, n); },
      [&]<bool kAll>(const GradientRows<T, kSize>& rows, Index first, int n) {
#pragma unroll
        for (int u = 0; u < kGradientRows; ++u) {
          if (!kAll && u >= n) continue;
          C g[kSize], centred[kSize];
          masked_gradient<kMaskX>(from, rows, u, mean, scale, beta, g, centred);
          Group<T, kSize> out;
#pragma unroll
          for (int j = 0; j < kSize; ++j) out.v[j] = static_cast<T>(g[j] * scale[j] + (centred[j] * slope[j] + offset[j]));
          store_group<T, kSize>(dx + start - (first + u) * stride, out);
        }
      });
}

}  // namespace detail

}  // namespace starling::cuda
