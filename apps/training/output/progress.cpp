#include "apps/training/output/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>

#include "core/console.h"
#include "core/core_wait.h"

namespace starling {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kTerminalSeconds = 0.1, kPlainSeconds = 5.0;
constexpr int kBarWidth = 24, kLeastBar = 5;

double seconds_from(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The line, whose fields stand two blanks apart, without those of these names that it takes.
std::string shortened(std::string line, std::size_t width,
                      std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const std::size_t at = line.find(name);
    if (line.size() <= width || at == std::string::npos) continue;
    const std::size_t begin = line.rfind("  ", at), end = line.find("  ", at + 1);
    line.erase(begin, end == std::string::npos ? end : end - begin);
  }
  return line;
}

}  // namespace

std::string Progress::fitted(std::size_t width) const {
  const std::size_t least = kLeastBar + 3;
  const std::string text = shortened(line_, width - std::min(width, least), {"  cores taken "});
  const auto room = static_cast<std::int64_t>(width) - static_cast<std::int64_t>(text.size()) - 3;
  const int bar = static_cast<int>(std::min<std::int64_t>(room, kBarWidth));
  if (bar < kLeastBar)
    return shortened(text, width, {"  lr ", "  epoch ", "  MFU ", "/s", " left"}).substr(0, width);
  const int filled = static_cast<int>(part_ * bar);
  return fmt::format("[{:#<{}}{:.<{}}] {}", "", filled, "", bar - filled, text);
}

void Progress::show() {
  if (line_.empty()) return;
  if (terminal_) {
    // Only ASCII, so that bytes are columns; a line as wide as the terminal would wrap.
    say("\r" + fitted(terminal_width() - 1) + "\x1b[K");
    on_screen_ = true;
  } else {
    say(line_ + "\n");
  }
  shown_ = true;
  last_shown_ = Clock::now();
}

Progress::Progress(std::int64_t total_steps, std::int64_t first_step, bool terminal,
                   std::string unit)
    : total_(total_steps), first_(first_step), terminal_(terminal), unit_(std::move(unit)) {}

Progress::~Progress() {
  if (on_screen_) say("\n");
}

void Progress::update(const MetricsLine& line, std::string_view unit) {
  const bool tokens = line.tokens_per_second.has_value();
  update(
      line.step,
      fmt::format("epoch {:.2f}  loss {:.4f}  lr {:.3g}  {:.0f} {}/s{}{}", line.epoch, *line.loss,
                  *line.lr, tokens ? *line.tokens_per_second : *line.samples_per_second,
                  tokens ? "tokens" : unit,
                  line.model_flop_utilization
                      ? fmt::format("  MFU {:.1f}%", 100.0 * *line.model_flop_utilization)
                      : "",
                  line.core_wait.value_or(0.0) >= kBusy
                      ? fmt::format("  cores taken {:.0f}%", 100.0 * *line.core_wait)
                      : ""));
}

void Progress::update(std::int64_t done, std::string_view details) {
  const std::int64_t newly = done - first_, left = std::max<std::int64_t>(0, total_ - done);
  part_ = total_ > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total_), 0.0, 1.0)
                     : 1.0;
  line_ =
      fmt::format("{} {}/{} {:.0f}%  {}", unit_, done, total_, std::floor(100.0 * part_), details);
  if (left > 0 && newly > 0) {
    line_ +=
        fmt::format("  {} left", duration_text(seconds_from(start_) / static_cast<double>(newly) *
                                               static_cast<double>(left)));
  }
  shown_ = false;
  const bool first = last_shown_ == Clock::time_point{};
  if (first || seconds_from(last_shown_) >= (terminal_ ? kTerminalSeconds : kPlainSeconds)) show();
}

void Progress::message(const std::string& line) {
  if (on_screen_) {
    say("\r\x1b[K");
    say(line + "\n");
    on_screen_ = false;
    show();
  } else {
    say(line + "\n");
  }
}

void Progress::finish() {
  if (!shown_) show();
  if (on_screen_) say("\n");
  on_screen_ = false;
  line_.clear();
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds > 1e9) return "?";
  const auto total = static_cast<std::int64_t>(std::llround(std::max(seconds, 0.0)));
  const std::int64_t hours = total / 3600, minutes = total / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60)
                   : fmt::format("{}:{:02}", minutes, total % 60);
}

}  // namespace starling
