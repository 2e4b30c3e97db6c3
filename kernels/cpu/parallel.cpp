#include "kernels/cpu/parallel.h"

#include <sched.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <exception>
#include <future>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/host.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace starling::cpu {

void flush_denormals() {
#if defined(__x86_64__)
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  const unsigned state = _mm_getcsr();
  if ((state & (kFlushToZero | kDenormalsAreZero)) != (kFlushToZero | kDenormalsAreZero)) {
    _mm_setcsr(state | kFlushToZero | kDenormalsAreZero);
  }
#elif defined(__aarch64__)
  constexpr unsigned long kFlushToZero = 1UL << 24;  // of operands, too
  unsigned long state = 0;
  asm volatile("mrs %0, fpcr" : "=r"(state));
  if (!(state & kFlushToZero)) asm volatile("msr fpcr, %0" : : "r"(state | kFlushToZero));
#endif
}

#if STARLING_OPENMP
namespace {

/// OpenMP's runtime ends the program where it gets too few threads. So as many are started before,
/// which only wait: Error(kMemory) where the system does not give them.
void check_threads(int count) {
  std::promise<void> all;
  std::vector<std::thread> threads;
  std::string reason;
  const std::shared_future<void> end = all.get_future().share();
  try {
    for (int i = 1; i < count; ++i) threads.emplace_back([end] { end.wait(); });
  } catch (const std::exception& refused) {
    reason = refused.what();
  }
  all.set_value();
  for (std::thread& thread : threads) thread.join();
  if (reason.empty()) return;
  fail(ExitCode::kMemory, "cpu",
       "{} threads were asked for, and the system gives {} ({}); use fewer threads, or raise "
       "ulimit -v and ulimit -u",
       count, threads.size() + 1, reason);
}

/// With OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY libgomp binds the first thread to one of its
/// threads' places when it is loaded. What counts cores, or starts a program, would see that alone.
void leave_place() {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int place = 0; place < omp_get_num_places(); ++place) {
    std::vector<int> cores(static_cast<std::size_t>(omp_get_place_num_procs(place)));
    omp_get_place_proc_ids(place, cores.data());
    for (const int core : cores) CPU_SET(core, &set);
  }
  if (CPU_COUNT(&set) > 0) sched_setaffinity(0, sizeof set, &set);
}

}  // namespace

void wait_with_short_spins(const char* name, char** argv) {
  leave_place();
  if (usable_cores() < 2 || std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  std::array<char, 4096> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  const std::string_view program(path.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  // A debugger or a loader may be what runs; it does not take these arguments.
  if (program.substr(program.rfind('/') + 1) != name || ::setenv("GOMP_SPINCOUNT", kSpins, 0) != 0)
    return;
  ::execv(path.data(), argv);  // comes back where it cannot: then the spins are long
}

Threads::Threads(int count) : count_(std::max(1, count)) {
  if (count_ > usable_cores()) check_threads(count_);
}
#else
void wait_with_short_spins(const char*, char**) {}
Threads::Threads(int) : count_(1) {}
#endif

void Threads::enter() const {
  flush_denormals();
#if STARLING_OPENMP
  if (omp_get_max_threads() == count_) return;
  omp_set_num_threads(count_);
  // The runtime's worker threads, which oneDNN uses as well, must treat subnormals in the same way.
  if (count_ > 1) {
#pragma omp parallel num_threads(count_)
    flush_denormals();
  }
#endif
}

}  // namespace starling::cpu
