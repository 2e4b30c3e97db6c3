#pragma once

// This folder: device code shared by several kernels, such as reductions over blocks, rows and
// columns, vector loads, last-block detection, elementwise loops and a tiled product. Headers only,
// included by .cu files.

// The first include of every kernel source (*.cu). nvcc compiles these for GPUs; a C++ compiler
// compiles them with the cuda_runtime.h of tests/fakes/cuda, which runs a block's threads as
// fibers, so that kernels run unchanged on a machine without a GPU.
//
// Kernels may only use what both support: __global__, __device__, __shared__ (fixed sizes),
// threadIdx, blockIdx, blockDim, gridDim, __syncthreads(), __syncwarp(), __shfl_down_sync,
// __shfl_xor_sync, __shfl_sync, __ballot_sync, __any_sync, __popc, atomicAdd (int, unsigned, float,
// double, unsigned long long), atomicInc, atomicMax (int, unsigned), atomicOr, atomicExch,
// __threadfence(), dynamic_shared<T>(), float4/uint4/double2, min, max, and the C mathematics
// functions. Extend the shim before using anything else. Kernels are started with launch()
// (kernels/cuda/runtime/launch.h).

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>

#include "core/dtype.h"
#include "core/host_device.h"

#if defined(__CUDACC__)
namespace starling::cuda {
/// The block's dynamic shared memory, whose size is an argument of launch().
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char starling_dynamic_shared[];
  return reinterpret_cast<T*>(starling_dynamic_shared);
}
}  // namespace starling::cuda
#endif

namespace starling::cuda {

using Index = std::int64_t;
constexpr int kWarp = 32;
constexpr int kThreads = 256;  ///< default block size

/// Converts a stored number to the type of arithmetic, and back with rounding to nearest even.
template <class T>
STARLING_HD Compute<T> widen(T x) {
  return static_cast<Compute<T>>(x);
}
template <class T>
STARLING_HD T narrow(Compute<T> x) {
  return static_cast<T>(x);
}

/// 16 bytes of T, which a thread loads and stores with one instruction. The address must be a
/// multiple of 16.
template <class T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T v[kSize];
};
/// Stores a pack to global memory with one instruction; nvcc often splits a plain assignment.
template <class T>
STARLING_HD void store_pack(T* to, const Pack<T>& pack) {
#if defined(__CUDA_ARCH__)
  __stwb(reinterpret_cast<uint4*>(to), std::bit_cast<uint4>(pack));
#else
  *reinterpret_cast<Pack<T>*>(to) = pack;
#endif
}

/// Whether all addresses are aligned for packs; null counts as aligned.
template <class... P>
bool packable(const P*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

/// Calls run.template operator()<kSize>(), where kSize is the number of elements that a thread
/// takes at a time: a pack, or 1 if rows of `channels` elements or a tensor's address are not
/// aligned.
template <class T, class Run, class... P>
void with_packs(Index channels, Run&& run, const P*... tensors) {
  if (channels % Pack<T>::kSize == 0 && packable(tensors...)) {
    run.template operator()<Pack<T>::kSize>();
  } else {
    run.template operator()<1>();
  }
}

}  // namespace starling::cuda
