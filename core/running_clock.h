#pragma once

#include <chrono>
#include <cstdint>

namespace starling {

/// A clock for timeouts that stops while this process is suspended (SIGSTOP, a batch system's
/// suspension, a paused container): when a whole job is suspended and resumed no wait times out. If
/// only other ranks are suspended it runs normally.
///
/// It relies on waits polling it: if there is no call for kMostApart the process was not running,
/// or nothing was waiting, and that time does not count. Waits must poll more often. On an
/// overloaded machine timeouts can become longer, never shorter.
class RunningClock {
 public:
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<RunningClock>;
  static constexpr bool is_steady = true;
  static constexpr std::chrono::milliseconds kMostApart{1000};

  /// Monotonic and thread-safe. As cheap as reading the system's clock.
  static time_point now();
  static duration seconds(double value) {
    return std::chrono::duration_cast<duration>(std::chrono::duration<double>(value));
  }
  static double seconds_since(time_point begin) {
    return std::chrono::duration<double>(now() - begin).count();
  }
  /// For tests: behaves as if the process had just been suspended for this long.
  static void pretend_suspension(duration length);
};

}  // namespace starling
