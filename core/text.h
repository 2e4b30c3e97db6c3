#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace starling {

/// Text that came from outside (a key, a name, a path, a value), fit for one short line of an
/// error: control characters and bytes that are not UTF-8 are escaped (\n, \x1b), and what is past
/// `limit` characters is replaced by "…".
std::string shown(std::string_view text, std::size_t limit = 80);

/// A text of several lines, each so, and whole.
std::string shown_lines(std::string_view text);

/// A name as a part of an output's line: its bytes, but for control characters, which are escaped.
std::string in_line(std::string_view text);

/// A name as a JSON text, quotes included; bytes that are not UTF-8 as the lone surrogates \udc80
/// to \udcff, of which Python's os.fsencode() makes these bytes again.
std::string json_text(std::string_view text);

/// A name in quotes, so that blanks at its ends are seen; one that another may look the same as,
/// since it has more than ASCII or such blanks, with its bytes: 'café' (caf\xc3\xa9).
std::string told_apart(std::string_view name);

/// Whether two different names look the same, or nearly: but for blanks at the ends, for characters
/// that are not seen, and for letters that the one has as one character (é) and the other as a
/// letter and its accents (as file systems take them apart: Unicode's NFC and NFD).
bool look_alike(std::string_view a, std::string_view b);
/// Two of `names` that do, if there are.
std::optional<std::pair<std::string, std::string>> lookalikes(
    const std::vector<std::string>& names);

/// "1 rank", "2 ranks", "1 batch", "2 batches".
std::string counted(std::int64_t count, std::string_view thing);
/// "a, b or c".
std::string either(const std::vector<std::string>& names);

/// Bytes of the UTF-8 character at the start of a text; 0: there is none (stray, overlong, a
/// surrogate, past U+10FFFF), then `part` of its bytes could begin one, at least 1.
std::size_t utf8_length(std::string_view text, std::size_t* part = nullptr);
/// A code point of valid UTF-8 and its bytes.
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
/// How many bytes of a text are valid UTF-8 from its start on.
std::size_t valid_utf8(std::string_view text);
bool is_utf8(std::string_view text);  ///< all of it
/// The text with U+FFFD in place of what is no UTF-8, one for each maximal part of a character
/// (Unicode Standard, 3.9; Python's errors="replace").
std::string repaired_utf8(std::string_view text);

/// ASCII's capitals in small letters.
std::string lower_case(std::string_view text);

}  // namespace starling
