#include "core/error.h"

#include <cxxabi.h>

#include <cstdint>
#include <cstdlib>
#include <new>
#include <string_view>
#include <system_error>
#include <typeinfo>
#include <utility>

#include "core/text.h"

namespace starling {
namespace {

// Characters of a line; the tail has the remedy
constexpr std::size_t kLongest = 1600, kTail = 400;

/// Fit for a terminal: printable, and a line that can be read. What came from outside may be
/// anything, and as long as it likes.
std::string one_line(const std::string& text) {
  std::string line = shown(text, SIZE_MAX);
  if (line.size() <= kLongest) return line;
  std::size_t tail = line.size() - kTail;
  while ((static_cast<unsigned char>(line[tail]) & 0xc0u) == 0x80u) ++tail;  // not into a character
  return shown(line, kLongest - kTail) + " … " + line.substr(tail);
}

/// Type of the exception that is being handled, as the source has it.
std::string exception_type() {
  const std::type_info* type = abi::__cxa_current_exception_type();
  if (!type) return "unknown";
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(type->name(), nullptr, nullptr, &status), &std::free);
  return plain ? plain.get() : type->name();
}

}  // namespace

std::string ErrorParts::sentence() const {
  std::string text;
  for (const std::string* place : {&where.file, &where.key}) {
    if (!place->empty()) text += *place + ": ";
  }
  return text + what;
}

std::string ErrorParts::message() const {
  return remedy.empty() ? sentence() : sentence() + "; " + remedy;
}

Error::Error(ExitCode code, ErrorParts parts)
    : std::runtime_error(one_line(fmt::format("[{}] {}", parts.component, parts.message()))),
      code_(code),
      parts_(std::make_shared<const ErrorParts>(std::move(parts))) {}

Error as_error(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& known) {
    return known;
  } catch (const std::bad_alloc&) {
    return Error(ExitCode::kMemory, {"memory", "the system has no memory left for this rank",
                                     "use a smaller batch_size or fewer ranks"});
  } catch (const std::system_error& refused) {
    const std::error_code& code = refused.code();
    if (code != std::errc::resource_unavailable_try_again && code != std::errc::not_enough_memory)
      return Error(ExitCode::kInternal, {"internal", refused.what()});
    return Error(
        ExitCode::kMemory,
        {"memory",
         fmt::format("the system gives this rank no more memory or threads ({})", refused.what()),
         "raise its limits (ulimit -v, ulimit -u), or use fewer threads and ranks"});
  } catch (const std::exception& unknown) {
    return Error(ExitCode::kInternal, {"internal", unknown.what()});
  } catch (...) {
    return Error(ExitCode::kInternal, {"internal", "an exception of unknown type"});
  }
}

Error told_by(std::string_view component, std::string key, const Error& error) {
  ErrorParts parts = error.parts();
  parts.what = fmt::format("[{}] {}", parts.component, parts.sentence());
  parts.component = component;
  parts.where.key = std::move(key);
  parts.where.file.clear();
  return Error(error.code(), std::move(parts));
}

std::string message_of(const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  return known ? known->message() : error.what();
}

namespace detail {

ErrorParts error_parts(std::string_view component, ErrorPlace where, fmt::string_view format,
                       fmt::format_args arguments) {
  // The arguments may hold a "; " too, so the format's own is marked by a character that no text
  // has.
  constexpr std::string_view kBreak = "; ";
  constexpr char kMark = '\x1f';
  std::string marked(format.data(), format.size());
  const std::size_t at = marked.rfind(kBreak);
  if (at != std::string::npos) marked.replace(at, kBreak.size(), 1, kMark);
  std::string text = fmt::vformat(marked, arguments);
  ErrorParts parts{std::string(component), {}, {}, std::move(where)};
  if (const std::size_t mark = at == std::string::npos ? at : text.find(kMark);
      mark != std::string::npos) {
    parts.remedy = text.substr(mark + 1);
    text.resize(mark);
  }
  parts.what = std::move(text);
  return parts;
}

void rethrow_named(std::string_view component, std::string_view key) {
  const Error known = as_error(std::current_exception());
  // Whose code asked for memory says nothing of who has it.
  if (known.code() == ExitCode::kMemory) throw Error(known);
  std::string what = "an exception of type " + exception_type();
  try {
    throw;
  } catch (const std::exception& thrown) {
    what = fmt::format("{}: {}", exception_type(), thrown.what());
  } catch (...) {
  }
  throw Error(ExitCode::kInternal,
              {std::string(component), std::move(what), {}, {.key = std::string(key)}});
}

}  // namespace detail

}  // namespace starling
