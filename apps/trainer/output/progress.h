#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace starling {

/// Rank 0's progress on stdout: one line rewritten in place on a terminal, with bar, loss, rate and time left; a plain line every few
/// seconds where stdout is not a terminal.
class Progress {
 public:
  Progress(std::int64_t total_steps, std::int64_t first_step, bool terminal);
  ~Progress();
  void update(std::int64_t step, double epoch, double loss, double lr, double images_per_second);
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
