#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace starling::log {

enum class Level { kDebug, kInfo, kWarning, kError };

/// Sets up the process's log: lines on stderr "rank R: …" for warnings and errors of any rank; info
/// lines of rank 0 only. Backed by spdlog.
void configure(int rank, int world_size, Level level = Level::kInfo);
void write(Level level, std::string_view line);

template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kWarning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace starling::log
