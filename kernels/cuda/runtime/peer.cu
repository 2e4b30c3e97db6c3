#include "kernels/cuda/runtime/peer.h"

#include <algorithm>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/runtime/handshake.h"
#include "kernels/cuda/runtime/launch.h"

namespace starling::cuda {
namespace {

constexpr unsigned kPause = 128;  // nanoseconds between two reads of a counter
// Reads of a counter per read of host memory, which crosses the bus
constexpr unsigned kLooksAtWords = 64;

__global__ void signal_kernel(std::uint32_t* counter, StepScalar<std::uint32_t> value) {
  store_release_system(counter, value.get());
}

__global__ void await_kernel(const __grid_constant__ AwaitedCounters awaited,
                             StepScalar<std::uint32_t> value, PeerWords* words,
                             PeerMemory::Purpose purpose, std::uint32_t limit) {
  const std::uint32_t wanted = value.get();
  std::uint32_t begin = 0;
  for (int i = 0; i < awaited.count; ++i) {
    for (unsigned looks = 0;; ++looks) {
      const std::uint32_t seen = load_acquire_system(awaited.counters[i]);
      if (has_reached(seen, wanted)) break;
      if (looks % kLooksAtWords == 0) {
        if (load_acquire_system(&words->stop_waiting) != 0) return;
        const std::uint32_t now = load_acquire_system(&words->clock_ms);
        if (begin == 0) begin = now;  // 0: not set yet
        if (now - begin > limit) {
          words->rank = awaited.ranks[i];
          words->bucket = purpose.bucket;
          words->kind = purpose.kind;
          words->wanted = wanted;
          words->seen = seen;
          store_release_system(&words->timed_out, 1);
          store_release_system(&words->stop_waiting, 1);
          return;
        }
      }
      sleep_nanoseconds(kPause);
    }
  }
}

/// A counter value, advanced by the number of steps between capture and launch.
StepScalar<std::uint32_t> count_of(CudaBackend& backend, std::uint32_t value) {
  return backend.step_scalar(value, [value](const StepValues& values, const StepValues& captured) {
    return value + static_cast<std::uint32_t>(values.pass - captured.pass);
  });
}

}  // namespace

void CudaPeerMemory::load_kernels() {
  load(signal_kernel);
  load(await_kernel);
}

void CudaPeerMemory::signal(std::uint32_t* counter, std::uint32_t value) {
  launch_waiting(signal_kernel, {{1}, {1}, backend_.handle()}, counter, count_of(backend_, value));
}

void CudaPeerMemory::await(std::span<const Awaited> counters, std::uint32_t value,
                           const Purpose& purpose, double limit_seconds) {
  tick();
  // The host's clock value may be one tick old.
  const auto limit =
      static_cast<std::uint32_t>(std::clamp(limit_seconds, 0.0, 1e6) * 1e3) + PeerWords::kTick;
  while (!counters.empty()) {
    AwaitedCounters some;
    for (; some.count < AwaitedCounters::kMost &&
           static_cast<std::size_t>(some.count) < counters.size();
         ++some.count) {
      const auto at = static_cast<std::size_t>(some.count);
      some.counters[at] = counters[at].counter;
      some.ranks[at] = counters[at].rank;
    }
    counters = counters.subspan(static_cast<std::size_t>(some.count));
    launch_waiting(await_kernel, {{1}, {1}, backend_.handle()}, some, count_of(backend_, value),
                   words_, purpose, limit);
  }
}

}  // namespace starling::cuda
