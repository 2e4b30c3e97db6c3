#include "core/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <memory>
#include <mutex>

#include "core/text.h"

namespace starling::log {

namespace {

// Characters of a line, which may quote what came from outside
constexpr std::size_t kLongest = 2000;

struct State {
  std::mutex mutex;
  int rank = 0;
  int world_size = 1;
  Level level = Level::kInfo;
  spdlog::logger logger{"starling", std::make_shared<spdlog::sinks::stderr_sink_mt>()};

  State() {
    logger.set_pattern("%v");
    logger.set_level(spdlog::level::trace);
    logger.flush_on(spdlog::level::trace);
  }
};

State& state() {
  static State& instance = *new State;  // never destroyed: threads may log until the process ends
  return instance;
}

spdlog::level::level_enum spdlog_level(Level level) {
  switch (level) {
    case Level::kDebug: return spdlog::level::debug;
    case Level::kInfo: return spdlog::level::info;
    case Level::kWarning: return spdlog::level::warn;
    case Level::kError: return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

void configure(int rank, int world_size, Level level) {
  State& log = state();
  const std::lock_guard lock(log.mutex);
  log.rank = rank;
  log.world_size = world_size;
  log.level = level;
}

void write(Level level, std::string_view line) {
  State& log = state();
  const std::lock_guard lock(log.mutex);
  if (level < log.level) return;
  const bool urgent = level >= Level::kWarning;
  if (!urgent && log.rank != 0) return;
  // One call a line: lines of several threads and ranks do not mix.
  const std::string prefix =
      urgent && log.world_size > 1 ? fmt::format("rank {}: ", log.rank) : std::string();
  log.logger.log(spdlog_level(level),
                 fmt::format("{}{}{}", prefix, level == Level::kWarning ? "warning: " : "",
                             shown(line, kLongest)));
}

}  // namespace starling::log
