#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace starling {

/// How a program ends. Every Error carries the one that the process exits with; docs/interface lists them for users.
enum class ExitCode : int {
  kOk = 0,
  kInternal = 1,  ///< a defect of Starling itself
  kUsage = 2,     ///< bad arguments, config, data, or a device that cannot be used
  kLost = 3,      ///< a rank or link was lost, or a wait passed its limit
  kDiverged = 4,  ///< the loss became NaN or infinite
  kOutput = 5,    ///< an output file could not be written
  kMemory = 6,    ///< out of memory
  kStopped = 75,  ///< stopped by a signal after a checkpoint
};

/// The one exception type that Starling throws on purpose. Its text is a single line that reads
/// "[component] what happened, where, what would be right".
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, std::string_view component, std::string_view message)
      : std::runtime_error(fmt::format("[{}] {}", component, message)), code_(code) {}
  ExitCode code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

/// Throws Error(code, component, formatted message).
template <class... Args>
[[noreturn]] void fail(ExitCode code, std::string_view component, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, component, fmt::format(format, std::forward<Args>(args)...));
}

/// Checks a condition that only a defect of the program (or of a plug-in's code) can break.
template <class... Args>
void require(bool condition, std::string_view component, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw Error(ExitCode::kInternal, component, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace starling
