#pragma once

#include <math.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>
#include <type_traits>

#include "kernels/cuda/runtime/runtime.h"

// CUDA's words for a C++ compiler: a kernel's source file compiles against this header as plain C++
// and runs on the CPU. Blocks run one after the other; the threads of a block are fibers that
// change at barriers, shuffles and votes alone, so shared memory is static memory and atomics are
// plain. The order in which a block's threads run between barriers can be set: what depends on it
// is a race.

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};

namespace starling::cuda::shim {

/// The order of a block's threads between two barriers, and of the blocks of a launch.
enum class Order { kForward, kBackward, kShuffled };
/// Sets the order for all launches from now on. `seed` is for kShuffled.
void set_order(Order order, std::uint64_t seed = 0);
/// Sets what resident_blocks() of launch.h answers from now on; 2 unless it is set.
void set_resident_blocks(int blocks);
int resident_blocks();

/// The thread that runs now.
inline uint3 thread_index{}, block_index{};
inline dim3 block_size{}, grid_size{};

enum class WarpCall : std::uint8_t { kSync, kShuffle, kBallot };
/// Waits until every thread of `mask` that has not returned has made the same call; the value that
/// the thread of lane `source` brought, or for a ballot the lanes that brought something else than
/// 0.
std::uint64_t warp_call(WarpCall call, unsigned mask, std::uint64_t value, int source);
void block_barrier(const std::source_location& where);
int lane();
unsigned char* dynamic_shared_memory();
/// kernels/cuda/device/async_copy.h. What was asked for comes when the thread waits for it; until
/// then it is NaN. Error(kInternal) if the addresses are no multiples of `bytes`.
void copy_async(void* to, const void* from, int bytes, bool inside);
void finish_copies();

/// Runs all threads of all blocks of call(function). Error(kInternal) where a block's threads part
/// ways: some wait in a barrier that the others never reach.
void run(Dim3 grid, Dim3 block, std::size_t shared_bytes, void (*call)(const void*),
         const void* function);
void note_launch(StreamHandle stream, const char* label);         ///< recorder.h
bool captures(StreamHandle stream);                               ///< recorder.h
void keep_work(StreamHandle stream, std::function<void()> work);  ///< recorder.h

/// `function` holds its arguments by value: a capture keeps it.
template <class F>
void launch(Dim3 grid, Dim3 block, std::size_t shared_bytes, StreamHandle stream, const F& function,
            const char* label = "kernel") {
  note_launch(stream, label);
  const auto work = [grid, block, shared_bytes](const F& f) {
    run(
        grid, block, shared_bytes, [](const void* any) { (*static_cast<const F*>(any))(); }, &f);
  };
  if (captures(stream)) {
    keep_work(stream, [work, function] { work(function); });
  } else {
    work(function);
  }
}

/// A kernel of one thread that uses nothing of the above; other threads' launches run meanwhile.
template <class F>
void launch_alone(StreamHandle stream, const F& function, const char* label = "kernel") {
  note_launch(stream, label);
  if (captures(stream)) {
    keep_work(stream, function);
  } else {
    function();
  }
}

template <class T>
T shuffle(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = warp_call(WarpCall::kShuffle, mask, bits, source);
  T result;
  std::memcpy(static_cast<void*>(&result), &bits, sizeof(T));
  return result;
}

}  // namespace starling::cuda::shim

namespace starling::cuda {
template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(shim::dynamic_shared_memory());
}
}  // namespace starling::cuda

#define threadIdx (::starling::cuda::shim::thread_index)
#define blockIdx (::starling::cuda::shim::block_index)
#define blockDim (::starling::cuda::shim::block_size)
#define gridDim (::starling::cuda::shim::grid_size)

inline void __syncthreads(const std::source_location& where = std::source_location::current()) {
  ::starling::cuda::shim::block_barrier(where);
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  ::starling::cuda::shim::warp_call(::starling::cuda::shim::WarpCall::kSync, mask, 0, 0);
}
inline void __threadfence() {}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return static_cast<unsigned>(::starling::cuda::shim::warp_call(
      ::starling::cuda::shim::WarpCall::kBallot, mask, predicate != 0 ? 1 : 0, 0));
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }

// A source lane outside the thread's section of `width` lanes gives the thread its own value.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int lane = ::starling::cuda::shim::lane();
  return ::starling::cuda::shim::shuffle(mask, value,
                                         (lane & ~(width - 1)) | (source & (width - 1)));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = ::starling::cuda::shim::lane();
  const bool inside = (lane & (width - 1)) + static_cast<int>(delta) < width;
  return ::starling::cuda::shim::shuffle(mask, value,
                                         inside ? lane + static_cast<int>(delta) : lane);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  const int lane = ::starling::cuda::shim::lane();
  const bool inside = ((lane ^ lanes) & ~(width - 1)) == (lane & ~(width - 1));
  return ::starling::cuda::shim::shuffle(mask, value, inside ? lane ^ lanes : lane);
}

template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  const T before = *address;
  *address = before + value;
  return before;
}
inline unsigned atomicInc(unsigned* address, unsigned most) {
  const unsigned before = *address;
  *address = before >= most ? 0 : before + 1;
  return before;
}
template <class T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  const T before = *address;
  *address = before < value ? value : before;
  return before;
}
template <class T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  const T before = *address;
  *address = before | value;
  return before;
}
template <class T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  const T before = *address;
  *address = value;
  return before;
}

template <class T>
requires std::is_integral_v<T>
constexpr T min(T a, T b) { return b < a ? b : a; }
template <class T>
requires std::is_integral_v<T>
constexpr T max(T a, T b) { return a < b ? b : a; }
inline float min(float a, float b) { return ::fminf(a, b); }
inline float max(float a, float b) { return ::fmaxf(a, b); }
inline double min(double a, double b) { return ::fmin(a, b); }
inline double max(double a, double b) { return ::fmax(a, b); }
