#include "kernels/cpu/parallel.h"

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
#endif
}

#if STARLING_OPENMP
Threads::Threads(int count) : count_(std::max(1, count)) {}
#else
Threads::Threads(int) : count_(1) {}
#endif

void Threads::enter() const {
  flush_denormals();
#if STARLING_OPENMP
  if (omp_get_max_threads() == count_) return;
  omp_set_num_threads(count_);
  // The runtime's worker threads, which oneDNN computes on too, must treat denormals alike.
  if (count_ > 1) {
#pragma omp parallel num_threads(count_)
    flush_denormals();
  }
#endif
}

}  // namespace starling::cpu
