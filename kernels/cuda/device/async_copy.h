#pragma once

#include "kernels/cuda/device/device.h"

// Copies from global to shared memory that do not go through registers and that the thread does not
// wait for (cp.async), so that it works on one part of its data while the next one is coming.
namespace starling::cuda {

/// Starts a copy of kBytes (4, 8 or 16; both addresses are multiples of it); unless `inside` they
/// become 0, wherever `from` points. `to` must not be touched until finish_copies().
template <int kBytes>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool inside) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
#if defined(__CUDA_ARCH__)
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  const int bytes = inside ? kBytes : 0;  // that are read; the others are filled with zeros
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(from), "n"(kBytes),
                 "r"(bytes)
                 : "memory");
  }
#elif !defined(__CUDACC__)
  shim::copy_async(to, from, kBytes, inside);
#endif
}

/// Waits for all copies of this thread; behind a barrier others see them, too.
__device__ __forceinline__ void finish_copies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_all;" ::: "memory");
#elif !defined(__CUDACC__)
  shim::finish_copies();
#endif
}

}  // namespace starling::cuda
