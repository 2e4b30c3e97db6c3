#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace starling {

/// How a program ends. Every Error carries the one that the process exits with; docs/outputs.md
/// lists them for users.
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

/// Where an error happened, as far as that is known.
struct ErrorPlace {
  std::string file = {};
  std::string key = {};  ///< of a config; or the name of the layer or tensor
  /// This and what follows: -1 where it does not apply; the sentence itself says them
  int rank = -1;
  std::int64_t step = -1;
  int bucket = -1;
};

/// What an error says, part by part.
struct ErrorParts {
  std::string component;
  std::string what;         ///< what happened
  std::string remedy = {};  ///< what would be right; may be empty
  ErrorPlace where = {};
  /// "file: key: what": the text without the component and the remedy.
  std::string sentence() const;
  /// "file: key: what; remedy": the text without the component.
  std::string message() const;
};

/// The one exception type that Starling throws on purpose. Its text is a single line: "[component]
/// file: key: what; remedy", without the parts that are empty. Copying it throws nothing.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, ErrorParts parts);
  ExitCode code() const noexcept { return code_; }
  const ErrorParts& parts() const noexcept { return *parts_; }
  std::string message() const { return parts_->message(); }

 private:
  ExitCode code_;
  std::shared_ptr<const ErrorParts> parts_;
};

/// An error as its caller tells it: "[component] key: [its component] its sentence; its remedy".
Error told_by(std::string_view component, std::string key, const Error& error);
/// The Error that an exception stands for: a lack of memory has an exit code of its own, what is
/// unknown is a defect.
Error as_error(const std::exception_ptr& exception);
/// Runs what may be a plug-in's code. An Error goes on as it is; any other exception becomes one
/// that says whose it is: "[component] key: std::out_of_range: its text". `key`: a text, or a
/// function that makes it.
template <class Key, class Work>
decltype(auto) named(std::string_view component, const Key& key, Work&& work);
/// An exception's text, an Error's without its component.
std::string message_of(const std::exception& error);

namespace detail {
/// The parts that a formatted text stands for: what follows the last "; " of the format itself is
/// the remedy.
ErrorParts error_parts(std::string_view component, ErrorPlace where, fmt::string_view format,
                       fmt::format_args arguments);
/// Throws the exception under way as an Error. Called within a catch (...).
[[noreturn]] void rethrow_named(std::string_view component, std::string_view key);
}  // namespace detail

template <class Key, class Work>
decltype(auto) named(std::string_view component, const Key& key, Work&& work) {
  try {
    return work();
  } catch (const Error&) {
    throw;
  } catch (...) {
    if constexpr (std::is_invocable_v<const Key&>)
      detail::rethrow_named(component, key());
    else
      detail::rethrow_named(component, key);
  }
}

/// Throws Error. The last "; " in `format` stands before the remedy: "{} ranks are too many; at
/// most {} are possible".
template <class... Args>
[[noreturn]] void fail(ExitCode code, std::string_view component, const ErrorPlace& where,
                       fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, detail::error_parts(component, where, format, fmt::make_format_args(args...)));
}
template <class... Args>
[[noreturn]] void fail(ExitCode code, std::string_view component,
                       fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, detail::error_parts(component, {}, format, fmt::make_format_args(args...)));
}

/// Checks a condition that only a defect of the program (or of a plug-in's code) can break.
template <class... Args>
void require(bool condition, std::string_view component, fmt::format_string<Args...> format,
             Args&&... args) {
  if (!condition)
    throw Error(ExitCode::kInternal,
                detail::error_parts(component, {}, format, fmt::make_format_args(args...)));
}

}  // namespace starling
