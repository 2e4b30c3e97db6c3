#include "core/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace starling {

namespace {

/// Bytes of the UTF-8 character at the start of `text`, 0 if there is none (stray, overlong, a surrogate, past U+10FFFF).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xc0u) == 0x80u; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return follows(1) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    if (!follows(1) || !follows(2)) return 0;
    if (lead == 0xe0 && byte(1) < 0xa0) return 0;
    if (lead == 0xed && byte(1) > 0x9f) return 0;
    return 3;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    if (!follows(1) || !follows(2) || !follows(3)) return 0;
    if (lead == 0xf0 && byte(1) < 0x90) return 0;
    if (lead == 0xf4 && byte(1) > 0x8f) return 0;
    return 4;
  }
  return 0;
}

}  // namespace

std::string shown(std::string_view text, std::size_t limit) {
  std::string result;
  std::size_t characters = 0;
  for (std::size_t i = 0; i < text.size();) {
    if (characters++ >= limit) return result + "…";
    const auto c = static_cast<unsigned char>(text[i]);
    const std::size_t length = utf8_length(text.substr(i));
    // C1 controls (U+0080 to U+009F) and the line separators U+2028/9 would break a line or a terminal as C0 ones do.
    const bool control = c < 0x20 || c == 0x7f || (c == 0xc2 && length == 2 && static_cast<unsigned char>(text[i + 1]) < 0xa0) ||
                         (length == 3 && (text.substr(i, 3) == "\xe2\x80\xa8" || text.substr(i, 3) == "\xe2\x80\xa9"));
    if (length != 0 && !control) {
      result += text.substr(i, length);
      i += length;
    } else if (c == '\n' || c == '\t' || c == '\r') {
      result += c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\r";
      ++i;
    } else {
      result += fmt::format("\\x{:02x}", c);
      ++i;
    }
  }
  return result;
}

std::string told_apart(std::string_view name) {
  const auto plain = [](char c) { return c >= 0x20 && c < 0x7f; };
  const bool blank_ends = !name.empty() && (name.front() == ' ' || name.back() == ' ');
  const std::string quoted = "'" + shown(name) + "'";
  if (!blank_ends && std::all_of(name.begin(), name.end(), plain)) return quoted;
  std::string bytes;
  for (const char c : name) bytes += plain(c) && c != ' ' ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return fmt::format("{} ({})", quoted, bytes);
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string wrapped(std::string_view text, int width, int& column) {
  constexpr int kIndent = 2;
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '\n' || text[at] == '\r') {
      result += text[at++];
      column = 0;
      continue;
    }
    const std::size_t word = std::min(text.find_first_not_of(' ', at), text.size());
    const std::size_t end = std::min(text.find_first_of(" \n\r", word), text.size());
    const int spaces = static_cast<int>(word - at);
    // Characters, not bytes: those of UTF-8 that continue one do not count.
    const auto letters =
        static_cast<int>(std::count_if(text.begin() + static_cast<std::ptrdiff_t>(word), text.begin() + static_cast<std::ptrdiff_t>(end),
                                       [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0u) != 0x80u; }));
    if (spaces > 0 && letters > 0 && column > kIndent && column + spaces + letters > width) {
      const int indent = kIndent + letters <= width ? kIndent : 0;
      (result += '\n').append(static_cast<std::size_t>(indent), ' ');
      column = indent;
    } else {
      result.append(static_cast<std::size_t>(spaces), ' ');
      column += spaces;
    }
    result += text.substr(word, end - word);
    column += letters;
    at = end;
  }
  return result;
}

}  // namespace starling
