#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "apps/training/output/metrics.h"

namespace starling {

/// Progress on stdout, rank 0's of training: one line rewritten in place on a terminal, with bar,
/// loss, rate and time left; a plain line every few seconds where stdout is not a terminal.
class Progress {
 public:
  /// `unit`: what is counted.
  Progress(std::int64_t total_steps, std::int64_t first_step, bool terminal,
           std::string unit = "step");
  ~Progress();
  /// Shows that so many are done; `details` stand before the time left.
  void update(std::int64_t done, std::string_view details);
  /// Shows a line of training; `unit`: what its samples are called.
  void update(const MetricsLine& line, std::string_view unit);
  /// A line of its own (an evaluation's result, a checkpoint) above the progress line.
  void message(const std::string& line);
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// "1:02:03", "4:05".
std::string duration_text(double seconds);

}  // namespace starling
