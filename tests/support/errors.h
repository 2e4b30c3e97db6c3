#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <string>

#include "core/error.h"

namespace starling::test {

/// The text of the Error that `call` throws; "" if it throws none. For threads and ranks of which
/// some may be spared.
template <class Call>
std::string error_text(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

/// The text of the Error that `call` throws, which must be one with this exit code, told in one
/// short line.
template <class Call>
std::string error_text(ExitCode code, const Call& call, std::size_t longest = 600) {
  return error_text([&] {
    try {
      call();
    } catch (const Error& error) {
      const std::string text = error.what();
      CHECK(error.code() == code);
      CHECK_MESSAGE(text.find('\n') == std::string::npos, text);
      CHECK_MESSAGE(text.size() <= longest, text);
      throw;
    }
  });
}

/// The text of the Error of a call that must throw.
template <class Call>
std::string error_of(ExitCode code, const Call& call, std::size_t longest = 600) {
  std::string text = error_text(code, call, longest);
  CHECK_MESSAGE(!text.empty(), "no error was thrown");
  return text;
}

/// Whether `text` has `part`; shows the text where it has not.
inline bool contains(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE("'" << part << "' is not in: " << text);
  return found;
}

/// Whether `call` throws an Error with this exit code whose text has `part`.
template <class Call>
bool fails(ExitCode code, const std::string& part, const Call& call) {
  return contains(error_of(code, call), part);
}

}  // namespace starling::test
