#pragma once

#include <doctest/doctest.h>

#include <string>

#include "core/error.h"

namespace starling::test {

/// The text of the Error that `call` throws; checks its exit code, and that it is one short line. "" (and a failed check) if none is
/// thrown.
template <class Call>
std::string error_of(ExitCode code, const Call& call, std::size_t longest = 600) {
  try {
    call();
  } catch (const Error& error) {
    const std::string text = error.what();
    CHECK(error.code() == code);
    CHECK_MESSAGE(text.find('\n') == std::string::npos, text);
    CHECK_MESSAGE(text.size() <= longest, text);
    return text;
  }
  FAIL_CHECK("no error was thrown");
  return {};
}

/// The text of the Error that `call` throws; "" if it throws none. For threads and ranks of which some may be spared.
template <class Call>
std::string error_text(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

/// Whether `text` has `part`; shows the text where it has not.
inline bool contains(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE("'" << part << "' is not in: " << text);
  return found;
}

}  // namespace starling::test
