#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "apps/training/output/metrics.h"

namespace starling {

/// Progress on stdout: one line rewritten in place on a terminal; elsewhere one every few seconds.
class Progress {
 public:
  /// `unit`: what is counted.
  Progress(std::int64_t total_steps, std::int64_t first_step, bool terminal,
           std::string unit = "step");
  ~Progress();
  /// Shows that `done` are done; `details` stand before the time left.
  void update(std::int64_t done, std::string_view details);
  /// Shows a line of training; `unit`: what its samples are called.
  void update(const MetricsLine& line, std::string_view unit);
  /// A line of its own (an evaluation's result, a checkpoint) above the progress line.
  void message(const std::string& line);
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  /// With a bar as wide as there is room for; where numbers have none, those go that say least.
  std::string fitted(std::size_t width) const;
  void show();

  std::int64_t total_, first_;
  bool terminal_;
  std::string unit_;
  Clock::time_point start_ = Clock::now(), last_shown_{};
  std::string line_;        ///< the newest state of the run
  double part_ = 0.0;       ///< of the run that is done
  bool shown_ = false;      ///< `line` has been printed
  bool on_screen_ = false;  ///< a progress line stands at the cursor (terminal)
};

/// "1:02:03", "4:05".
std::string duration_text(double seconds);

}  // namespace starling
