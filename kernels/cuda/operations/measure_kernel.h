#pragma once

#include <cstdint>

#include "core/operations/updates.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/operations/update_buffers.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/gpu_update.h"
#include "kernels/math/update_loop.h"

// The passes before the fused update of a rule that measures layers: two kernels leave each layer's
// factor in device memory, where the update reads it. Sums have the CPU's order
// (kernels/optimizer.h), so that the bits are the CPU's.

namespace starling::cuda {

constexpr int kMeasureThreads = 256;

namespace detail {

/// The sum over the block's threads, in the order of the CPU's halving; thread 0 has it.
__device__ __forceinline__ double halve(double value, double* shared) {
  const int thread = static_cast<int>(threadIdx.x);
  shared[thread] = value;
  __syncthreads();
  for (int width = kMeasureThreads / 2; width > 0; width /= 2) {
    if (thread < width) shared[thread] = shared[thread] + shared[thread + width];
    __syncthreads();
  }
  const double sum = shared[0];
  __syncthreads();  // the memory is written again
  return sum;
}

}  // namespace detail

/// One block a piece: thread t has the lanes t, t + 256, t + 512 and t + 768. kTerms as in
/// update_kernel.
template <class Step, int kTerms>
__global__ void __launch_bounds__(kMeasureThreads)
    measure_kernel(const UpdateBuffers<typename Step::Real> buffers,
                   const UpdateValues<Step, kTerms> values, const std::int32_t* pieces,
                   double* sums) {
  using T = typename Step::Real;
  constexpr int kLanes = static_cast<int>(kLayerLanes) / kMeasureThreads;
  static_assert(kLanes == 4, "the halving below is written for four");
  constexpr int kHeld = Step::kStates > 0 ? Step::kStates : 1;
  constexpr int kBlock = starling::detail::kUpdateBlock;
  __shared__ double shared[kMeasureThreads];

  UpdateScalars<Step> scalars = values.scalars;
  if (values.device_scalars != nullptr) scalars = *values.device_scalars;
  const Step step = scalars.step;
  const T self_weight = scalars.self_weight;
  const T weight0 = scalars.weights[0], weight1 = scalars.weights[1];
  const T scale = static_cast<T>(scalars.gradient_scale *
                                 (buffers.control != nullptr ? buffers.control[0] : 1.0));

  const std::int64_t begin = std::int64_t{pieces[2 * blockIdx.x]} * kBlock;
  const int count = pieces[2 * blockIdx.x + 1] * kBlock;
  double parameters[kLanes] = {}, measured[kLanes] = {};
  for (int round = 0; round < count; round += static_cast<int>(kLayerLanes)) {
    // All loads first. Past the end they repeat the piece's last element, which is not added.
    T x[kLanes], g[kLanes], received0[kLanes], received1[kLanes], states[kHeld][kLanes];
    std::int64_t at[kLanes];
    std::uint8_t entry[kLanes];
#pragma unroll
    for (int k = 0; k < kLanes; ++k) {
      const int i = round + k * kMeasureThreads + static_cast<int>(threadIdx.x);
      at[k] = begin + (i < count ? i : count - 1);
      entry[k] = buffers.decay[at[k] / kBlock];
      x[k] = buffers.x[at[k]];
      g[k] = buffers.gradient[at[k]];
      if constexpr (kTerms > 0) received0[k] = buffers.received[0][at[k]];
      if constexpr (kTerms > 1) received1[k] = buffers.received[1][at[k]];
#pragma unroll
      for (int s = 0; s < Step::kStates; ++s) {
        if ((Step::kMeasureReads >> s) & 1u) states[s][k] = buffers.states[s][at[k]];
      }
    }
    if constexpr (kTerms < 0) {
#pragma unroll
      for (int k = 0; k < kLanes; ++k) x[k] = self_weight * x[k];
      for (int term = 0; term < buffers.terms; ++term) {
        UpdateTerm<T> from;
        if (values.device_terms != nullptr) {
          from = values.device_terms[term];
        } else {
          from = values.terms[term];
        }
#pragma unroll
        for (int k = 0; k < kLanes; ++k)
          x[k] = x[k] + from.weight * static_cast<const T*>(from.received)[at[k]];
      }
    }
#pragma unroll
    for (int k = 0; k < kLanes; ++k) {
      if (round + k * kMeasureThreads + static_cast<int>(threadIdx.x) >= count) continue;
      T p = x[k];
      if constexpr (kTerms >= 0) p = self_weight * p;
      if constexpr (kTerms > 0) p = p + weight0 * received0[k];
      if constexpr (kTerms > 1) p = p + weight1 * received1[k];
      T state[kHeld] = {};
#pragma unroll
      for (int s = 0; s < Step::kStates; ++s) {
        if ((Step::kMeasureReads >> s) & 1u) state[s] = states[s][k];
      }
      const auto c = static_cast<double>(p);
      const auto d =
          static_cast<double>(step.measured(p, scale * g[k], state, (entry[k] & kDecays) != 0));
      parameters[k] = parameters[k] + c * c;
      measured[k] = measured[k] + d * d;
    }
  }
  const double of_parameters =
      detail::halve((parameters[0] + parameters[2]) + (parameters[1] + parameters[3]), shared);
  const double of_measured =
      detail::halve((measured[0] + measured[2]) + (measured[1] + measured[3]), shared);
  if (threadIdx.x == 0) {
    sums[2 * blockIdx.x] = of_parameters;
    sums[2 * blockIdx.x + 1] = of_measured;
  }
}

/// One warp a layer.
template <class Step>
__global__ void __launch_bounds__(kMeasureThreads)
    layer_kernel(const Step step, const Step* from, const std::int32_t* layers,
                 const std::int32_t* pieces, int count, const double* sums,
                 const std::uint8_t* decay, double* factors) {
  const int k = static_cast<int>(blockIdx.x) * (kMeasureThreads / kWarp) +
                static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (k >= count) return;
  static_assert(kLayerChains == kWarp);
  const int first = layers[4 * k], last = first + layers[4 * k + 1];
  double parameters = 0.0, measured = 0.0;
#pragma unroll 4
  for (int piece = first + lane; piece < last; piece += kWarp) {
    parameters = parameters + sums[2 * piece];
    measured = measured + sums[2 * piece + 1];
  }
  double of_parameters = 0.0, of_measured = 0.0;
  for (int i = 0; i < kWarp; ++i) {
    of_parameters = of_parameters + __shfl_sync(0xffffffffu, parameters, i);
    of_measured = of_measured + __shfl_sync(0xffffffffu, measured, i);
  }
  if (lane != 0) return;
  const int begin = layers[4 * k + 2], kind = layers[4 * k + 3],
            end = pieces[2 * (last - 1)] + pieces[2 * (last - 1) + 1];
  const bool weight = kind % 2 != 0, decays = (decay[begin] & kDecays) != 0;
  const std::int64_t numbers =
      std::int64_t{end - begin} * starling::detail::kUpdateBlock - kind / 2;
  if (from != nullptr) {
    factors[k] = starling::detail::layer_factor_of(*from, of_parameters, of_measured, weight,
                                                   decays, numbers);
  } else {
    factors[k] = starling::detail::layer_factor_of(step, of_parameters, of_measured, weight, decays,
                                                   numbers);
  }
}

namespace detail {

/// The two kernels, on the update's stream.
template <class Launcher, class Step, class T, int kTerms>
void launch_measure(const UpdateLayers& layers, const UpdateBuffers<T>& buffers,
                    const UpdateValues<Step, kTerms>& values, const GpuUpdateContext& site) {
  Launch measure{};
  measure.grid.x = static_cast<unsigned>(layers.pieces.elements() / 2);
  measure.block.x = kMeasureThreads;
  measure.stream = site.stream;
  Launcher::run(&measure_kernel<Step, kTerms>, measure, buffers, values,
                layers.pieces.data<std::int32_t>(), layers.sums.data<double>());
  constexpr int kWarps = kMeasureThreads / kWarp;
  const int count = static_cast<int>(layers.factors.elements());
  Launch finish{};
  finish.grid.x = static_cast<unsigned>((count + kWarps - 1) / kWarps);
  finish.block.x = kMeasureThreads;
  finish.stream = site.stream;
  const Step* from = values.device_scalars != nullptr ? &values.device_scalars->step : nullptr;
  Launcher::run(&layer_kernel<Step>, finish, values.scalars.step, from,
                layers.layers.data<std::int32_t>(), layers.pieces.data<std::int32_t>(), count,
                layers.sums.data<double>(), buffers.decay, layers.factors.data<double>());
}

}  // namespace detail
}  // namespace starling::cuda
