#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace starling {

/// Gives the times, by the host's clock, at which a device reached marked points in its streams.
/// Used by the thread that issues work.
class DeviceClock {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Mark = std::uint64_t;
  virtual ~DeviceClock() = default;
  /// Marks the current stream's work so far.
  virtual Mark mark() = 0;
  /// When the device reached the mark; nothing if it has not yet. Does not wait. To be called until
  /// it returns a time, which discards the mark.
  virtual std::optional<Time> time_of(Mark mark) = 0;
};

}  // namespace starling
