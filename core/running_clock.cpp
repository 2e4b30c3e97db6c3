#include "core/running_clock.h"

#include <atomic>
#include <mutex>

namespace starling {
namespace {

using Nanoseconds = std::chrono::nanoseconds::rep;

// The system's clock at the last look that was noted, and the time before it that does not count.
std::atomic<Nanoseconds> noted{0}, left_out{0}, pretended{0};
constexpr Nanoseconds kMostApart = std::chrono::nanoseconds(RunningClock::kMostApart).count();
constexpr Nanoseconds kNoteAfter = kMostApart / 50;  // else every look would write

Nanoseconds system_now() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count() +
         pretended.load(std::memory_order_relaxed);
}

/// Notes that the process runs, and the time since it last was known to.
void note() {
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  const Nanoseconds last = noted.load(std::memory_order_relaxed), apart = system_now() - last;
  if (apart <= kNoteAfter) return;  // another thread has been here
  // Threads may have seen the time up to kNoteAfter past the last note
  if (apart > kMostApart && last != 0)
    left_out.fetch_add(apart - kNoteAfter, std::memory_order_release);
  noted.store(last + apart, std::memory_order_release);
}

}  // namespace

RunningClock::time_point RunningClock::now() {
  while (true) {
    const Nanoseconds last = noted.load(std::memory_order_acquire);
    const Nanoseconds out = left_out.load(std::memory_order_acquire);
    const Nanoseconds now = system_now();
    if (now - last > kNoteAfter) {
      note();
      continue;
    }
    // Suspended since the look above, and noted by another thread: what was read does not belong
    // together.
    if (left_out.load(std::memory_order_acquire) == out) return time_point(duration(now - out));
  }
}

void RunningClock::pretend_suspension(duration length) {
  now();
  pretended.fetch_add(length.count(), std::memory_order_relaxed);
}

}  // namespace starling
