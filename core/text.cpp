#include "core/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <map>

namespace starling {

namespace {

std::string escaped(std::string_view text, std::size_t limit, bool keep_bytes) {
  std::string result;
  std::size_t characters = 0;
  for (std::size_t i = 0; i < text.size();) {
    if (characters++ >= limit) return result + "…";
    const auto c = static_cast<unsigned char>(text[i]);
    const std::size_t length = utf8_length(text.substr(i));
    // C1 controls (U+0080 to U+009F) and the line separators U+2028/9 would break a line or a
    // terminal as C0 ones do.
    const bool control =
        c < 0x20 || c == 0x7f ||
        (c == 0xc2 && length == 2 && static_cast<unsigned char>(text[i + 1]) < 0xa0) ||
        (length == 3 &&
         (text.substr(i, 3) == "\xe2\x80\xa8" || text.substr(i, 3) == "\xe2\x80\xa9"));
    if (length != 0 && !control) {
      result += text.substr(i, length);
      i += length;
    } else if (c == '\n' || c == '\t' || c == '\r') {
      result += c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\r";
      ++i;
    } else if (length == 0 && keep_bytes) {
      result += text[i++];
    } else {
      result += fmt::format("\\x{:02x}", c);
      ++i;
    }
  }
  return result;
}

/// A character with the accents that follow it, as code points.
using Letter = std::u32string;

bool within(char32_t c, std::initializer_list<std::pair<char32_t, char32_t>> ranges) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [c](const auto& range) { return c >= range.first && c <= range.second; });
}

struct Looks {
  std::vector<Letter> letters;
  /// Whether another name can look the same: it has accents of their own, or what was left out here
  bool odd = false;

  explicit Looks(std::string_view text) {
    for (std::size_t i = 0; i < text.size();) {
      const std::size_t length = std::max<std::size_t>(utf8_length(text.substr(i)), 1);
      add(length > 1 ? decode_utf8(text.data() + i).code
                     : static_cast<char32_t>(static_cast<unsigned char>(text[i])));
      i += length;
    }
    while (!letters.empty() && letters.back() == U" ") {
      letters.pop_back();
      odd = true;
    }
  }
  /// Equal for names that look the same.
  std::string key() const {
    std::string result;
    for (const Letter& letter : letters)
      result += letter.size() == 1 && letter[0] < 0x80 ? static_cast<char>(letter[0]) : '\x01';
    return result;
  }

 private:
  void add(char32_t c) {
    const bool unseen = within(
        c, {{0xad, 0xad}, {0x200b, 0x200f}, {0x2060, 0x2064}, {0xfe00, 0xfe0f}, {0xfeff, 0xfeff}});
    const bool blank =
        c <= 0x20 || c == 0x7f ||
        within(c, {{0x80, 0xa0}, {0x2000, 0x200a}, {0x202f, 0x202f}, {0x3000, 0x3000}});
    // Of Latin, Greek and Cyrillic letters; of Arabic, Devanagari and Japanese ones; the parts of
    // Korean syllables.
    const bool accent = within(c, {{0x300, 0x36f},
                                   {0x653, 0x655},
                                   {0x93c, 0x93c},
                                   {0x1dc0, 0x1dff},
                                   {0x3099, 0x309a},
                                   {0x1160, 0x11ff}});
    odd = odd || unseen || accent || (blank && (c != ' ' || letters.empty()));
    if (unseen || (blank && letters.empty())) return;
    if (accent && !letters.empty())
      letters.back() += c;
    else
      letters.emplace_back(1, blank ? U' ' : c);
  }
};

bool same_looks(const Looks& a, const Looks& b) {
  return std::equal(a.letters.begin(), a.letters.end(), b.letters.begin(), b.letters.end(),
                    [](const Letter& one, const Letter& other) {
                      const Letter& shorter = one.size() < other.size() ? one : other;
                      // é as one character, and as two
                      return one == other || (one.size() != other.size() && shorter[0] >= 0x80);
                    });
}

}  // namespace

std::string shown(std::string_view text, std::size_t limit) { return escaped(text, limit, false); }
std::string in_line(std::string_view text) { return escaped(text, std::string::npos, true); }

std::string shown_lines(std::string_view text) {
  std::string result;
  for (std::size_t end; (end = text.find('\n')) != std::string_view::npos;
       text.remove_prefix(end + 1))
    result += shown(text.substr(0, end), std::string::npos) + '\n';
  return result + shown(text, std::string::npos);
}

std::string json_text(std::string_view text) {
  std::string result = "\"";
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const auto c = static_cast<unsigned char>(text[0]);
    if (length == 0)
      result += fmt::format("\\udc{:02x}", c);
    else if (c == '"' || c == '\\')
      result += {'\\', text[0]};
    else if (c == '\n')
      result += "\\n";
    else if (c < 0x20)
      result += fmt::format("\\u{:04x}", c);
    else
      result += text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return result + '"';
}

bool look_alike(std::string_view a, std::string_view b) {
  return a != b && same_looks(Looks(a), Looks(b));
}

std::optional<std::pair<std::string, std::string>> lookalikes(
    const std::vector<std::string>& names) {
  std::map<std::string, std::vector<std::pair<Looks, const std::string*>>> groups;
  for (const std::string& name : names) {
    Looks looks(name);
    auto& group = groups[looks.key()];
    for (const auto& [others, other] : group) {
      if ((looks.odd || others.odd) && same_looks(looks, others)) return std::pair(*other, name);
    }
    group.emplace_back(std::move(looks), &name);
  }
  return std::nullopt;
}

std::string told_apart(std::string_view name) {
  const auto plain = [](char c) { return c >= 0x20 && c < 0x7f; };
  const bool blank_ends = !name.empty() && (name.front() == ' ' || name.back() == ' ');
  const std::string quoted = "'" + shown(name) + "'";
  if (!blank_ends && std::all_of(name.begin(), name.end(), plain)) return quoted;
  std::string bytes;
  for (const char c : name)
    bytes += plain(c) && c != ' ' ? std::string(1, c)
                                  : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return fmt::format("{} ({})", quoted, bytes);
}

std::size_t utf8_length(std::string_view text, std::size_t* part) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  std::size_t unused = 0, &good = part ? *part : unused;
  good = 1;
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t count = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  // overlong forms, surrogates, and what is above U+10FFFF
  const unsigned low = first == 0xe0   ? 0xa0u
                       : first == 0xf0 ? 0x90u
                                       : 0x80u,
                 high = first == 0xed   ? 0x9fu
                        : first == 0xf4 ? 0x8fu
                                        : 0xbfu;
  if (byte(1) < low || byte(1) > high) return 0;
  for (good = 2; good < count; ++good) {
    if ((byte(good) & 0xc0u) != 0x80u) return 0;
  }
  return count;
}

void append_utf8(std::string& text, std::uint32_t code) {
  const auto put = [&](std::uint32_t byte) { text += static_cast<char>(byte); };
  const auto more = [&](int shift) { put(0x80 | ((code >> shift) & 0x3f)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) return put(0xc0 | code >> 6), more(0);
  if (code < 0x10000) return put(0xe0 | code >> 12), more(6), more(0);
  put(0xf0 | code >> 18), more(12), more(6), more(0);
}

std::size_t valid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    std::uint64_t eight = 0;
    if (at + sizeof eight <= text.size()) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const std::size_t bytes = utf8_length(text.substr(at));
    if (bytes == 0) return at;
    at += bytes;
  }
  return text.size();
}

bool is_utf8(std::string_view text) { return valid_utf8(text) == text.size(); }

std::string repaired_utf8(std::string_view text) {
  std::string result;
  for (;;) {
    const std::size_t valid = valid_utf8(text);
    result += text.substr(0, valid);
    text.remove_prefix(valid);
    if (text.empty()) return result;
    std::size_t part = 0;
    utf8_length(text, &part);
    result += "\xEF\xBF\xBD";
    text.remove_prefix(part);
  }
}

std::string lower_case(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

std::string counted(std::int64_t count, std::string_view thing) {
  const bool hisses = thing.ends_with('s') || thing.ends_with('x') || thing.ends_with("ch");
  return fmt::format("{} {}{}", count, thing, count == 1 ? "" : hisses ? "es" : "s");
}

std::string either(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t k = 0; k < names.size(); ++k)
    text += (k == 0 ? "" : k + 1 == names.size() ? " or " : ", ") + names[k];
  return text;
}

}  // namespace starling
