#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace starling {

/// Makes external text (a key, a name, a path, a value) suitable for a one-line error: escapes
/// control characters and bytes that are not UTF-8 (\n, \x1b), and truncates it to `limit`
/// characters and "…".
std::string shown(std::string_view text, std::size_t limit = 80);

/// The same for each line of a text, without truncation.
std::string shown_lines(std::string_view text);

/// A name for a line of output: only control characters are escaped.
std::string in_line(std::string_view text);

/// A name as a JSON string with quotes. Bytes that are not UTF-8 become lone surrogates \udc80 to
/// \udcff, which Python's os.fsencode() converts back.
std::string json_text(std::string_view text);

/// A name in quotes, so that leading and trailing blanks are visible; followed by its bytes if it
/// has such blanks or non-ASCII characters, and so may look like another: 'café' (caf\xc3\xa9).
std::string told_apart(std::string_view name);

/// Whether two different names look the same: up to leading and trailing blanks, invisible
/// characters, and Unicode normalisation (é as one character or as letter and accent: NFC, NFD).
bool look_alike(std::string_view a, std::string_view b);
/// A pair of `names` that look alike, if any.
std::optional<std::pair<std::string, std::string>> lookalikes(
    const std::vector<std::string>& names);

/// "1 rank", "2 ranks", "1 batch", "2 batches".
std::string counted(std::int64_t count, std::string_view thing);
/// "a, b or c".
std::string either(const std::vector<std::string>& names);

/// Length in bytes of the UTF-8 character at the start of a text. 0 if it is invalid (stray byte,
/// overlong, surrogate, above U+10FFFF); then `part` is set to the number of bytes, at least 1,
/// that could begin a character.
std::size_t utf8_length(std::string_view text, std::size_t* part = nullptr);
/// A code point, and its length in bytes.
struct Decoded {
  std::uint32_t code;
  std::uint32_t bytes;
};
inline Decoded decode_utf8(const char* at) {
  const auto byte = [&](int i) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(at[i]));
  };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xe0) return {(first & 0x1f) << 6 | (byte(1) & 0x3f), 2};
  if (first < 0xf0) return {(first & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f), 3};
  return {(first & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f),
          4};
}
void append_utf8(std::string& text, std::uint32_t code);
/// The length in bytes of the valid UTF-8 at the start of a text.
std::size_t valid_utf8(std::string_view text);
bool is_utf8(std::string_view text);  ///< all of it
/// Replaces invalid UTF-8 by U+FFFD, once for each maximal subpart (Unicode Standard, 3.9; like
/// Python's errors="replace").
std::string repaired_utf8(std::string_view text);

/// Converts ASCII letters to lower case.
std::string lower_case(std::string_view text);

}  // namespace starling
