#pragma once

// What lives here: code for the device that several kernels share. Sums of a block, a row or a
// column; wide loads; who is the last block; elementwise loops; a tiled product. Headers alone, for
// .cu files alone.

// What a kernel's source file (*.cu) includes first. nvcc compiles it for GPUs; a C++ compiler
// compiles the same file against the cuda_runtime.h of tests/fakes/cuda, which runs a block's
// threads as fibers, so that every kernel runs whole on a machine without a GPU.
//
// What kernels may use, in both: __global__, __device__, __shared__ (fixed sizes), threadIdx,
// blockIdx, blockDim, gridDim, __syncthreads(), __syncwarp(), __shfl_down_sync, __shfl_xor_sync,
// __shfl_sync, __ballot_sync, __any_sync, atomicAdd (int, unsigned, float, double, unsigned long
// long), atomicInc, atomicMax (int, unsigned), atomicOr, atomicExch, __threadfence(),
// dynamic_shared<T>(), float4/uint4/double2, min, max, and the C mathematics functions. Nothing
// else: extend the shim first. Kernels are started with launch() (kernels/cuda/runtime/launch.h).

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>

#include "core/dtype.h"
#include "core/host_device.h"

#if defined(__CUDACC__)
namespace starling::cuda {
/// The block's shared memory whose size launch() was given.
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
constexpr int kThreads = 256;  ///< of a block, where a kernel has no reason for another number

/// A stored number as the type that arithmetic runs in, and back with rounding to nearest even.
template <class T>
STARLING_HD Compute<T> widen(T x) {
  return static_cast<Compute<T>>(x);
}
template <class T>
STARLING_HD T narrow(Compute<T> x) {
  return static_cast<T>(x);
}

/// 16 bytes of T: what one thread loads and stores at once. The address must be a multiple of 16.
template <class T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T v[kSize];
};
/// A pack to an address of global memory in one instruction: of a plain assignment nvcc often makes
/// several smaller ones.
template <class T>
STARLING_HD void store_pack(T* to, const Pack<T>& pack) {
#if defined(__CUDA_ARCH__)
  __stwb(reinterpret_cast<uint4*>(to), std::bit_cast<uint4>(pack));
#else
  *reinterpret_cast<Pack<T>*>(to) = pack;
#endif
}

/// Whether packs can be loaded from every one of these; null counts as yes.
template <class... P>
bool packable(const P*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

/// Calls run.template operator()<kSize>() with how many numbers a thread takes at once: a pack, or
/// one where lines of `channels` numbers or a tensor's start do not allow that.
template <class T, class Run, class... P>
void with_packs(Index channels, Run&& run, const P*... tensors) {
  if (channels % Pack<T>::kSize == 0 && packable(tensors...)) {
    run.template operator()<Pack<T>::kSize>();
  } else {
    run.template operator()<1>();
  }
}

}  // namespace starling::cuda
