#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "comm/other_ranks.h"
#include "comm/transport.h"

namespace starling::detail {

inline constexpr std::size_t kCacheLine = 64;

/// Exchange counters of one bucket, in the owner's shared memory, written by the owner only. They
/// wrap around.
struct BucketCounts {
  /// Exchanges for which this rank's parameters are final
  alignas(kCacheLine) std::atomic<std::uint32_t> published{0};
  /// Exchanges for which this rank has finished reading other ranks' parameters
  alignas(kCacheLine) std::atomic<std::uint32_t> released{0};
};

/// A rank's last activity, for errors of ranks that wait for it.
struct Pulse {
  enum class Doing : std::int32_t {
    kNothing,
    kPublished,
    kWaitsForNeighbour,
    kWaitsForReaders,
    kMixed,
    kEnded
  };
  /// Its time by the host's monotonic clock; 0: never
  alignas(kCacheLine) std::atomic<std::int64_t> nanoseconds{0};
  std::atomic<std::int64_t> step{-1}, round{-1};
  std::atomic<std::int32_t> bucket{-1};
  std::atomic<Doing> doing{Doing::kNothing};

  void beat(Doing what, const ExchangeLabel& label);
  void beat(Doing what);
  double seconds_ago() const;  ///< negative: never
  /// "published bucket 3 of step 12".
  std::string text() const;
};

/// Header of a rank's shared memory; a BucketCounts for each bucket follows.
struct ControlBlock {
  Pulse pulse;
  BucketCounts* counts(std::size_t bucket) {
    return reinterpret_cast<BucketCounts*>(this + 1) + bucket;
  }
  static std::size_t bytes(std::size_t buckets) {
    return sizeof(ControlBlock) + buckets * sizeof(BucketCounts);
  }
  /// Constructs it in zeroed memory.
  static ControlBlock* make(std::byte* memory, std::size_t buckets);
};

/// Whether `count` >= `target`, modulo 2^32.
inline bool reached(const std::atomic<std::uint32_t>& count, std::uint32_t target) {
  return static_cast<std::int32_t>(count.load(std::memory_order_acquire) - target) >= 0;
}
/// Sets a count and wakes threads of all processes that wait for it.
void advance(std::atomic<std::uint32_t>& count, std::uint32_t value);
/// Waits until reached(): polls for `spin`, then sleeps. Returns false on a timeout.
bool wait_for(const std::atomic<std::uint32_t>& count, std::uint32_t target,
              std::chrono::nanoseconds spin, std::chrono::nanoseconds limit);

/// The control blocks of the ranks that share memory, by rank.
using ControlBlocks = std::map<int, ControlBlock*>;

/// Waits for counts of other ranks, which end with Error(kLost) if a rank is lost or after a time
/// limit. Warns once about each rank that takes long.
class CountWaits {
 public:
  /// `spin`: poll for some microseconds before sleeping. `check`: called periodically, throws if
  /// the wait cannot succeed any more; may be null.
  CountWaits(double timeout_seconds, bool spin, std::function<void()> check);
  using Member = std::atomic<std::uint32_t> BucketCounts::*;
  /// Until counts(index)->*member has reached `target` on each of the ranks. `own`: this rank.
  /// what() describes the wait.
  void operator()(const ControlBlocks& controls, int own, const std::vector<int>& ranks,
                  std::size_t index, Member member, std::uint32_t target, Pulse::Doing doing,
                  const ExchangeLabel& label, const std::function<std::string()>& what);

 private:
  double timeout_seconds_;
  bool spin_;
  std::function<void()> check_;
  LateRanks late_;
};

}  // namespace starling::detail
