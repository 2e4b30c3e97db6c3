#pragma once

#include <cstdint>

#include "kernels/cuda/device/device.h"

// Loads and stores with a say in what the level-2 cache gives up first. A hint changes no number and no order: PTX calls it one for
// performance alone. It is a register's contents, so that one kernel serves with and without.
namespace starling::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

using CacheHint = std::uint64_t;

/// What is not touched again soon goes first where `evict_first`; otherwise like everything else.
__device__ __forceinline__ CacheHint cache_hint(bool evict_first) {
  CacheHint first, normal;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(normal));
  return evict_first ? first : normal;
}

__device__ __forceinline__ void load_hinted(const void* from, uint4& to, CacheHint hint) {
  asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
               : "l"(from), "l"(hint));
}
__device__ __forceinline__ void load_hinted(const void* from, uint2& to, CacheHint hint) {
  asm volatile("ld.global.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;" : "=r"(to.x), "=r"(to.y) : "l"(from), "l"(hint));
}
__device__ __forceinline__ void store_hinted(void* to, const uint4& from, CacheHint hint) {
  asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;"
               :
               : "l"(to), "r"(from.x), "r"(from.y), "r"(from.z), "r"(from.w), "l"(hint)
               : "memory");
}

#else  // the shim, and devices before the hints

struct CacheHint {};

__device__ __forceinline__ CacheHint cache_hint(bool) { return {}; }
template <class Words>
__device__ __forceinline__ void load_hinted(const void* from, Words& to, CacheHint) {
  to = *static_cast<const Words*>(from);
}
__device__ __forceinline__ void store_hinted(void* to, const uint4& from, CacheHint) { *static_cast<uint4*>(to) = from; }

#endif

}  // namespace starling::cuda
