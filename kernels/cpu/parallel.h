#pragma once

#include <algorithm>
#include <cstdint>

#if STARLING_OPENMP
#include <omp.h>
#endif

namespace starling::cpu {

/// Called first in main(): lets the thread run on all cores that the program has, of which OpenMP
/// may have given it one (OMP_PROC_BIND), and starts the program `name` again with short spins
/// (kSpins) where it may run on several cores and the environment does not say how OpenMP's threads
/// wait (GOMP_SPINCOUNT, OMP_WAIT_POLICY). GCC's runtime reads that when it is loaded, before
/// main(), and spins 300,000 times by default. Where another program has a core, the thread that
/// spins takes time from the one it waits for.
void wait_with_short_spins(const char* name, char** argv);
/// Some 20 µs, about what it takes to wake a thread.
inline constexpr const char* kSpins = "1000";

/// Makes denormal numbers count as zero on the calling thread, in arguments and results: they slow
/// kernels many times.
void flush_denormals();

/// The threads that one backend computes with. Work is cut into equal parts in order, one a thread,
/// so the same call computes the same bits for a given number of threads. With one thread (or
/// without OpenMP) everything runs in the caller.
class Threads {
 public:
  explicit Threads(int count);
  int count() const { return count_; }

  /// Prepares the calling thread to compute: denormals, and the thread count of libraries that use
  /// OpenMP.
  void enter() const;

  /// Calls fn(begin, end) over [0, n) in at most count() parts, each a multiple of `grain` but for
  /// the last.
  template <class F>
  void parallel_for(std::int64_t n, std::int64_t grain, F&& fn) const {
    parallel_parts(n, grain,
                   [&](std::int64_t, std::int64_t begin, std::int64_t end) { fn(begin, end); });
  }

  /// The same with fn(part, begin, end), part < count(): for sums that each part gathers on its
  /// own.
  template <class F>
  void parallel_parts(std::int64_t n, std::int64_t grain, F&& fn) const {
    if (n <= 0) return;
    const std::int64_t grains = (n + grain - 1) / grain;
    const std::int64_t parts = std::min<std::int64_t>(count_, grains);
    if (parts <= 1) {
      fn(std::int64_t{0}, std::int64_t{0}, n);
      return;
    }
#if STARLING_OPENMP
#pragma omp parallel num_threads(static_cast <int>(parts))
    {
      flush_denormals();
      // Fewer threads than asked for may come; then some take several parts.
      const std::int64_t team = omp_get_num_threads();
      for (std::int64_t part = omp_get_thread_num(); part < parts; part += team) {
        const std::int64_t begin = grains * part / parts * grain;
        const std::int64_t end = std::min(n, grains * (part + 1) / parts * grain);
        if (begin < end) fn(part, begin, end);
      }
    }
#endif
  }

  /// Calls fn(part, begin, count) over [0, n) block by block, of `block` each but for the last, one
  /// after the other in a part.
  template <class F>
  void parallel_blocks(std::int64_t n, std::int64_t block, F&& fn) const {
    parallel_parts(n, block, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
      for (std::int64_t at = begin; at < end; at += block) fn(part, at, std::min(block, end - at));
    });
  }

 private:
  int count_;
};

}  // namespace starling::cpu
