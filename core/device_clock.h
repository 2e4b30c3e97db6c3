#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace starling {

/// Tells when a device came to points in the work of its streams, on the host's clock. For use by
/// the thread that issues work.
class DeviceClock {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Mark = std::uint64_t;
  virtual ~DeviceClock() = default;
  /// Marks the current stream's work so far.
  virtual Mark mark() = 0;
  /// Time when the device came to the mark; nothing while it has not. Does not wait, and is asked
  /// until it answers: then the mark is forgotten.
  virtual std::optional<Time> time_of(Mark mark) = 0;
};

}  // namespace starling
