#include "apps/training/output/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "core/console.h"
#include "core/core_wait.h"

namespace starling {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kTerminalSeconds = 0.1, kPlainSeconds = 5.0;
constexpr int kBarWidth = 24, kLeastBar = 5;

double seconds_since(Clock::time_point begin) {
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

struct Progress::State {
  std::int64_t total, first;
  bool terminal;
  std::string unit;
  Clock::time_point start = Clock::now(), last_shown{};
  std::string line{};      ///< the newest state of the run
  double part = 0.0;       ///< of the run that is done
  bool shown = false;      ///< `line` has been printed
  bool on_screen = false;  ///< a progress line stands at the cursor (terminal)

  /// The line with a bar as wide as there is room for: its numbers matter more, but for what others
  /// take of the machine. Where they have no room themselves, those go that say least.
  std::string fitted(std::size_t width) const {
    const std::size_t least = kLeastBar + 3;
    const std::string text = shortened(line, width - std::min(width, least), {"  cores taken "});
    const auto room = static_cast<std::int64_t>(width) - static_cast<std::int64_t>(text.size()) - 3;
    const int bar = static_cast<int>(std::min<std::int64_t>(room, kBarWidth));
    if (bar < kLeastBar)
      return shortened(text, width, {"  lr ", "  epoch ", "  MFU ", "/s", " left"})
          .substr(0, width);
    const int filled = static_cast<int>(part * bar);
    return fmt::format("[{:#<{}}{:.<{}}] {}", "", filled, "", bar - filled, text);
  }
  void show() {
    if (line.empty()) return;
    if (terminal) {
      // Only ASCII, so that bytes are columns; a line as wide as the terminal would wrap and could
      // not be rewritten.
      say("\r" + fitted(terminal_width() - 1) + "\x1b[K");
      on_screen = true;
    } else {
      say(line + "\n");
    }
    shown = true;
    last_shown = Clock::now();
  }
};

Progress::Progress(std::int64_t total_steps, std::int64_t first_step, bool terminal,
                   std::string unit)
    : state_(new State{total_steps, first_step, terminal, std::move(unit)}) {}

Progress::~Progress() {
  if (state_->on_screen) say("\n");
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
  State& s = *state_;
  const std::int64_t newly = done - s.first, left = std::max<std::int64_t>(0, s.total - done);
  const double part =
      s.total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(s.total), 0.0, 1.0)
                  : 1.0;
  s.part = part;
  s.line =
      fmt::format("{} {}/{} {:.0f}%  {}", s.unit, done, s.total, std::floor(100.0 * part), details);
  if (left > 0 && newly > 0) {
    s.line +=
        fmt::format("  {} left", duration_text(seconds_since(s.start) / static_cast<double>(newly) *
                                               static_cast<double>(left)));
  }
  s.shown = false;
  const bool first = s.last_shown == Clock::time_point{};
  if (first || seconds_since(s.last_shown) >= (s.terminal ? kTerminalSeconds : kPlainSeconds))
    s.show();
}

void Progress::message(const std::string& line) {
  if (state_->on_screen) {
    say("\r\x1b[K");
    say(line + "\n");
    state_->on_screen = false;
    state_->show();
  } else {
    say(line + "\n");
  }
}

void Progress::finish() {
  State& s = *state_;
  if (!s.shown) s.show();
  if (s.on_screen) say("\n");
  s.on_screen = false;
  s.line.clear();
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds > 1e9) return "?";
  const auto total = static_cast<std::int64_t>(std::llround(std::max(seconds, 0.0)));
  const std::int64_t hours = total / 3600, minutes = total / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60)
                   : fmt::format("{}:{:02}", minutes, total % 60);
}

}  // namespace starling
