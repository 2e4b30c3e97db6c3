#pragma once

#include <cstdint>

#include "core/host_device.h"

// Synchronisation between the devices and processes of a host by counters that one sets and others
// poll.
namespace starling::cuda {

STARLING_HD std::uint32_t load_acquire_system(const std::uint32_t* from) {
#if defined(__CUDA_ARCH__)
  std::uint32_t value = 0;
  asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
#else
  return __atomic_load_n(from, __ATOMIC_ACQUIRE);
#endif
}
/// Stores a value with release semantics, also for earlier work on the stream.
STARLING_HD void store_release_system(std::uint32_t* to, std::uint32_t value) {
#if defined(__CUDA_ARCH__)
  __threadfence_system();
  asm volatile("st.release.sys.u32 [%0], %1;" : : "l"(to), "r"(value) : "memory");
#else
  __atomic_store_n(to, value, __ATOMIC_RELEASE);
#endif
}
#if !defined(__CUDACC__)
namespace shim {
void sleep_in_kernel(unsigned nanoseconds);  // tests/fakes/cuda/peer_fake.cpp
}
#endif
/// Sleeps for at most this time. Only for kernels.
STARLING_HD void sleep_nanoseconds(unsigned duration) {
#if defined(__CUDA_ARCH__)
  __nanosleep(duration);
#elif defined(__CUDACC__)
  (void)duration;  // in nvcc's host pass, which runs no kernel
#else
  shim::sleep_in_kernel(duration);
#endif
}

/// Whether a counter, which may wrap around, has reached `target`.
STARLING_HD bool has_reached(std::uint32_t count, std::uint32_t target) {
  return static_cast<std::int32_t>(count - target) >= 0;
}

}  // namespace starling::cuda
