#include "comm/shared/direct_control.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>
#include <new>
#include <string_view>
#include <thread>
#include <utility>

#include "core/running_clock.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace starling::detail {
namespace {

using Steady = std::chrono::steady_clock;

static_assert(std::atomic<std::uint32_t>::is_always_lock_free &&
                  std::atomic<std::int64_t>::is_always_lock_free,
              "counts in shared memory need atomics without a lock");
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t),
              "the kernel sleeps on the count itself");

void relax() {
#if defined(__SSE2__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

std::int64_t monotonic_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Steady::now().time_since_epoch())
      .count();
}

std::string_view verb_of(Pulse::Doing doing) {
  switch (doing) {
    case Pulse::Doing::kNothing: break;  // outside of steps
    case Pulse::Doing::kPublished: return "published";
    case Pulse::Doing::kWaitsForNeighbour: return "waits for a neighbour's";
    case Pulse::Doing::kWaitsForReaders: return "waits for readers of";
    case Pulse::Doing::kMixed: return "mixed";
    case Pulse::Doing::kEnded: return "has ended after";
  }
  return "?";
}

}  // namespace

void Pulse::beat(Doing what, const ExchangeLabel& label) {
  step.store(label.step, std::memory_order_relaxed);
  round.store(label.round, std::memory_order_relaxed);
  bucket.store(label.bucket, std::memory_order_relaxed);
  beat(what);
}

void Pulse::beat(Doing what) {
  doing.store(what, std::memory_order_release);
  nanoseconds.store(monotonic_nanoseconds(), std::memory_order_release);
}

double Pulse::seconds_ago() const {
  const std::int64_t then = nanoseconds.load(std::memory_order_acquire);
  return then == 0
             ? -1.0
             : 1e-9 *
                   static_cast<double>(std::max<std::int64_t>(0, monotonic_nanoseconds() - then));
}

std::string Pulse::text() const {
  const Doing what = doing.load(std::memory_order_relaxed);
  const std::int64_t at = step.load(std::memory_order_relaxed);
  if (at < 0)
    return what == Doing::kEnded ? "has ended before its first exchange"
                                 : "has exchanged nothing yet";
  return fmt::format("{} bucket {} of step {}", verb_of(what),
                     bucket.load(std::memory_order_relaxed), at);
}

ControlBlock* ControlBlock::make(std::byte* memory, std::size_t buckets) {
  auto* block = new (memory) ControlBlock;
  for (std::size_t b = 0; b < buckets; ++b) new (block->counts(b)) BucketCounts;
  return block;
}

void advance(std::atomic<std::uint32_t>& count, std::uint32_t value) {
  count.store(value, std::memory_order_release);
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&count), FUTEX_WAKE, INT_MAX, nullptr,
          nullptr, 0);
}

bool wait_for(const std::atomic<std::uint32_t>& count, std::uint32_t target,
              std::chrono::nanoseconds spin, std::chrono::nanoseconds limit) {
  if (reached(count, target)) return true;
  const auto deadline = Steady::now() + limit;
  if (spin.count() > 0) {
    const auto until = Steady::now() + spin;
    do {
      for (int i = 0; i < 16; ++i) {
        relax();
        if (reached(count, target)) return true;
      }
    } while (Steady::now() < until);
  }
  while (true) {
    const std::uint32_t seen = count.load(std::memory_order_acquire);
    if (reached(count, target)) return true;
    const auto left =
        std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Steady::now()).count();
    if (left <= 0) return false;
    const timespec pause{static_cast<std::time_t>(left / 1'000'000'000),
                         static_cast<long>(left % 1'000'000'000)};
    // Returns immediately if the count is not `seen` any more. Waiting does not write, as other
    // ranks' memory may be mapped read-only.
    syscall(SYS_futex, reinterpret_cast<const std::uint32_t*>(&count), FUTEX_WAIT, seen, &pause,
            nullptr, 0);
  }
}

CountWaits::CountWaits(double timeout_seconds, bool spin, std::function<void()> check)
    : timeout_seconds_(timeout_seconds),
      spin_(spin),
      check_(std::move(check)),
      late_(timeout_seconds) {}

void CountWaits::operator()(const ControlBlocks& controls, int own, const std::vector<int>& ranks,
                            std::size_t index, Member member, std::uint32_t target,
                            Pulse::Doing doing, const ExchangeLabel& label,
                            const std::function<std::string()>& what) {
  constexpr auto kSlice = std::chrono::milliseconds(20);  // interval of checks during a long wait
  const auto count_of = [&](int r) -> const std::atomic<std::uint32_t>& {
    return controls.at(r)->counts(index)->*member;
  };
  const auto known_of = [&](int r) {
    const Pulse& pulse = controls.at(r)->pulse;
    return AwaitedRank{r, pulse.seconds_ago(), pulse.text(), !reached(count_of(r), target)};
  };
  RunningClock::time_point begin{};
  auto spin = std::chrono::nanoseconds(spin_ ? std::chrono::microseconds(20)
                                             : std::chrono::microseconds(0));
  for (const int r : ranks) {
    if (reached(count_of(r), target)) continue;
    if (begin == RunningClock::time_point{}) {
      begin = RunningClock::now();
      controls.at(own)->pulse.beat(doing, label);
    }
    const auto deadline = begin + RunningClock::seconds(timeout_seconds_);
    const auto waited = [&] { return RunningClock::seconds_since(begin); };
    while (!wait_for(count_of(r), target, spin, kSlice)) {
      spin = std::chrono::nanoseconds(0);
      if (check_) check_();
      check_lost_ranks();
      if (RunningClock::now() >= deadline) {
        std::vector<AwaitedRank> known;
        for (const int other : ranks) known.push_back(known_of(other));
        fail_wait(own, what(), label, timeout_seconds_, std::move(known));
      }
      if (late_.due(r, waited())) late_.warn(known_of(r), waited(), what(), label);
    }
    late_.came(waited());
  }
}

}  // namespace starling::detail
