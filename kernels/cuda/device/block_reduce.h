#pragma once

#include "kernels/cuda/device/device.h"

// Sums and maxima over a warp's or a block's threads, in a fixed order. Every thread of the warp
// (of the block) must call them; blocks are one-dimensional.
namespace starling::cuda {

constexpr unsigned kFullWarp = 0xffffffffu;

struct Plus {
  template <class T>
  STARLING_HD T operator()(T a, T b) const {
    return a + b;
  }
};
/// The larger value; NaN if either is NaN.
struct Larger {
  template <class T>
  STARLING_HD T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};

/// Combines `value` over kLanes adjacent lanes of a warp; all of them get the same bits.
template <int kLanes = kWarp, class T, class F>
__device__ inline T warp_reduce(T value, F combine) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2)
    value = combine(value, __shfl_xor_sync(kFullWarp, value, distance));
  return value;
}
template <class T>
__device__ inline T warp_sum(T value) {
  return warp_reduce(value, Plus{});
}

/// Combines the values of a block of kThreads (a multiple of 32) threads; every thread gets the
/// result. `shared` has kThreads / 32 elements and may be reused from an earlier call.
template <int kThreads, class T, class F>
__device__ inline T block_reduce(T value, T* shared, F combine) {
  static_assert(kThreads % kWarp == 0 && kThreads <= 1024);
  value = warp_reduce(value, combine);
  __syncthreads();  // all have read the result of an earlier call
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
  __syncthreads();
  T result = shared[0];
#pragma unroll
  for (int warp = 1; warp < kThreads / kWarp; ++warp) result = combine(result, shared[warp]);
  return result;
}
/// The same over the kTeam threads of a row: a warp, or the whole block.
template <int kTeam, class T, class F>
__device__ __forceinline__ T team_reduce(T value, F combine) {
  if constexpr (kTeam == kWarp) {
    return warp_reduce(value, combine);
  } else {
    __shared__ T shared[kTeam / kWarp];
    return block_reduce<kTeam>(value, shared, combine);
  }
}
template <int kThreads, class T>
__device__ inline T block_sum(T value, T* shared) {
  return block_reduce<kThreads>(value, shared, Plus{});
}

}  // namespace starling::cuda
