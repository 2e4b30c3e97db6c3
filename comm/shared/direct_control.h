#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "comm/transport.h"

namespace starling::detail {

inline constexpr std::size_t kCacheLine = 64;

/// Counts of one bucket, in the owner's shared memory: it alone writes them. They count in a
/// circle.
struct BucketCounts {
  /// Exchanges whose parameters of this rank are final
  alignas(kCacheLine) std::atomic<std::uint32_t> published{0};
  /// Exchanges up to which this rank reads nobody's parameters any more
  alignas(kCacheLine) std::atomic<std::uint32_t> released{0};
};

/// A rank's signs of life, for errors of those that wait for it.
struct Pulse {
  enum class Doing : std::int32_t {
    kNothing,
    kPublished,
    kWaitsForNeighbour,
    kWaitsForReaders,
    kMixed,
    kEnded
  };
  /// Time of the host's monotonic clock; 0: never
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

/// The start of a rank's shared memory; `buckets` counts follow.
struct ControlBlock {
  Pulse pulse;
  BucketCounts* counts(std::size_t bucket) {
    return reinterpret_cast<BucketCounts*>(this + 1) + bucket;
  }
  static std::size_t bytes(std::size_t buckets) {
    return sizeof(ControlBlock) + buckets * sizeof(BucketCounts);
  }
  /// Makes one in zeroed memory.
  static ControlBlock* make(std::byte* memory, std::size_t buckets);
};

/// Whether `count` has come to `target`.
inline bool reached(const std::atomic<std::uint32_t>& count, std::uint32_t target) {
  return static_cast<std::int32_t>(count.load(std::memory_order_acquire) - target) >= 0;
}
/// Sets a count and wakes those that sleep on it, in whichever process.
void advance(std::atomic<std::uint32_t>& count, std::uint32_t value);
/// Waits until reached(), by looking for `spin` at first and sleeping then; false where the
/// limit comes first.
bool wait_for(const std::atomic<std::uint32_t>& count, std::uint32_t target,
              std::chrono::nanoseconds spin, std::chrono::nanoseconds limit);

}  // namespace starling::detail
