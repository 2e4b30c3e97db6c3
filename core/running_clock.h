#pragma once

#include <chrono>
#include <cstdint>

namespace starling {

/// The time in which this process ran: a clock for how long others may take. A job that is
/// suspended as a whole (SIGSTOP, a batch system's suspension, a paused container) goes on where it
/// was, and nobody has waited for anybody meanwhile; where others alone were suspended, it goes on
/// as any clock does.
///
/// Whoever waits asks it again and again. Where nobody has for kMostApart, the process was not
/// running, or nobody was waiting: that time does not count. So waits ask more often than that, and
/// a machine that holds them all up for longer makes limits longer, never shorter.
class RunningClock {
 public:
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<RunningClock>;
  static constexpr bool is_steady = true;
  static constexpr std::chrono::milliseconds kMostApart{1000};

  /// Costs a look at the system's clock. Any thread may ask; none sees it go back.
  static time_point now();
  static duration seconds(double value) {
    return std::chrono::duration_cast<duration>(std::chrono::duration<double>(value));
  }
  static double seconds_since(time_point begin) {
    return std::chrono::duration<double>(now() - begin).count();
  }
  /// For tests: as if the process had been suspended for so long, now.
  static void pretend_suspension(duration length);
};

}  // namespace starling
