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

/// Exit statuses, documented in docs/outputs.md. Every Error has the one that the process exits
/// with.
enum class ExitCode : int {
  kOk = 0,
  kInternal = 1,  ///< a defect of Starling itself
  kUsage = 2,     ///< bad arguments, config, data, or a device that cannot be used
  kLost = 3,      ///< a rank or link was lost, or a wait timed out
  kDiverged = 4,  ///< the loss became NaN or infinite
  kOutput = 5,    ///< an output file could not be written
  kMemory = 6,    ///< out of memory
  kStopped = 75,  ///< stopped by a signal after a checkpoint
};

/// Where an error happened, as far as known.
struct ErrorPlace {
  std::string file = {};
  std::string key = {};  ///< of a config; or the name of the layer or tensor
  /// This and the following: -1 if not applicable. Not part of sentence()
  int rank = -1;
  std::int64_t step = -1;
  int bucket = -1;
};

/// The parts of an error's message.
struct ErrorParts {
  std::string component;
  std::string what;         ///< what happened
  std::string remedy = {};  ///< what to do; may be empty
  ErrorPlace where = {};
  /// "file: key: what"
  std::string sentence() const;
  /// "file: key: what; remedy"
  std::string message() const;
};

/// The only exception type that Starling throws deliberately. Its text is one line: "[component]
/// file: key: what; remedy", without empty parts. Copying it does not throw.
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

/// Adds a caller's context: "[component] key: [its component] its sentence; its remedy".
Error told_by(std::string_view component, std::string key, const Error& error);
/// Converts any exception: std::bad_alloc to kMemory, unknown ones to kInternal.
Error as_error(const std::exception_ptr& exception);
/// Runs code that may be a plug-in's. Errors pass unchanged; any other exception becomes an Error
/// that names its origin: "[component] key: std::out_of_range: its text". `key`: a text or a
/// function that returns one.
template <class Key, class Work>
decltype(auto) named(std::string_view component, const Key& key, Work&& work);
/// An exception's text, an Error's without its component.
std::string message_of(const std::exception& error);

namespace detail {
/// Formats the parts: the remedy is what follows the last "; " of `format`.
ErrorParts error_parts(std::string_view component, ErrorPlace where, fmt::string_view format,
                       fmt::format_args arguments);
/// Rethrows the current exception as an Error. To be called in a catch (...).
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

/// Throws Error. The last "; " in `format` separates the remedy: "{} ranks are too many; at most {}
/// are possible".
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

/// Throws Error(kInternal) unless the condition holds, for conditions that only a bug can violate.
template <class... Args>
void require(bool condition, std::string_view component, fmt::format_string<Args...> format,
             Args&&... args) {
  if (!condition)
    throw Error(ExitCode::kInternal,
                detail::error_parts(component, {}, format, fmt::make_format_args(args...)));
}

}  // namespace starling
