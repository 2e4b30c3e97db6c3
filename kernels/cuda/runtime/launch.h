#pragma once

#include <source_location>
#include <utility>

#include "core/error.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/runtime/runtime.h"

namespace starling::cuda {

struct Launch {
  Dim3 grid, block;
  StreamHandle stream = nullptr;
  std::size_t shared_bytes = 0;  ///< size of dynamic_shared()
  /// Source position that names the operation in errors and records; use the default
  std::source_location where = std::source_location::current();
};

/// kernel<<<…>>>(arguments…). Arguments are converted to the kernel's own parameter types.
template <class... P, class... A>
void launch(void (*kernel)(P...), const Launch& how, A&&... arguments) {
  static_assert(sizeof...(P) == sizeof...(A), "the kernel takes another number of arguments");
#if defined(__CUDACC__)
  [&](P... values) {
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&values))..., nullptr};
    launch_kernel(reinterpret_cast<const void*>(kernel), how.grid, how.block, how.shared_bytes,
                  how.stream, pointers, how.where.function_name());
  }(static_cast<P>(std::forward<A>(arguments))...);
#else
  [&](P... values) {
    shim::launch(
        how.grid, how.block, how.shared_bytes, how.stream, [=] { kernel(values...); },
        how.where.function_name());
  }(static_cast<P>(std::forward<A>(arguments))...);
#endif
}

/// The number of blocks of `threads` threads without dynamic shared memory that one multiprocessor
/// runs at the same time. A grid of that many per multiprocessor runs in a single wave. Depends on
/// kernel and device only.
template <class... P>
int resident_blocks(void (*kernel)(P...), int threads,
                    const std::source_location& where = std::source_location::current()) {
#if defined(__CUDACC__)
  return blocks_per_multiprocessor(reinterpret_cast<const void*>(kernel), threads,
                                   where.function_name());
#else
  (void)kernel, (void)threads, (void)where;
  return shim::resident_blocks();
#endif
}

/// Launches a one-thread kernel that may wait for other ranks' devices; in the shim it does not
/// block other ranks' launches.
template <class... P, class... A>
void launch_waiting(void (*kernel)(P...), const Launch& how, A&&... arguments) {
#if defined(__CUDACC__)
  launch(kernel, how, std::forward<A>(arguments)...);
#else
  static_assert(sizeof...(P) == sizeof...(A), "the kernel takes another number of arguments");
  [&](P... values) {
    shim::launch_alone(
        how.stream, [=] { kernel(values...); }, how.where.function_name());
  }(static_cast<P>(std::forward<A>(arguments))...);
#endif
}

template <class... P>
void load(void (*kernel)(P...),
          const std::source_location& where = std::source_location::current()) {
#if defined(__CUDACC__)
  load_kernel(reinterpret_cast<const void*>(kernel), where.function_name());
#else
  (void)kernel, (void)where;
#endif
}

/// launch() through the calling library's own copy of the runtime, which is the only one that knows
/// a plug-in's kernels.
template <class... P, class... A>
void launch_own(void (*kernel)(P...), const Launch& how, A&&... arguments) {
  static_assert(sizeof...(P) == sizeof...(A), "the kernel takes another number of arguments");
#if defined(__CUDACC__)
  [&](P... values) {
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&values))..., nullptr};
    const cudaError_t error = cudaLaunchKernel(
        reinterpret_cast<const void*>(kernel), dim3(how.grid.x, how.grid.y, how.grid.z),
        dim3(how.block.x, how.block.y, how.block.z), pointers, how.shared_bytes,
        static_cast<cudaStream_t>(how.stream));
    if (error != cudaSuccess)
      fail(ExitCode::kInternal, "cuda", "a plug-in's kernel could not be started: {}",
           cudaGetErrorString(error));
  }(static_cast<P>(std::forward<A>(arguments))...);
#else
  launch(kernel, how, std::forward<A>(arguments)...);
#endif
}

/// The number of blocks of `threads` that cover n elements with `per_thread` each, at most `most`;
/// kernels use grid-stride loops for the rest.
inline unsigned blocks_for(Index n, int threads, int per_thread = 1, Index most = 65535 * 16) {
  const Index each = Index{threads} * per_thread;
  const Index blocks = (n + each - 1) / each;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > most ? most : blocks);
}

}  // namespace starling::cuda
