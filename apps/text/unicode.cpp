#include "apps/text/unicode.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <unordered_map>
#include <vector>

#include "core/text.h"

namespace starling::unicode {
namespace {

constexpr std::uint8_t kUnassigned = kCategories - 1;  // Cn

/// Kinds by blocks of code points, with equal blocks shared.
struct Kinds {
  static constexpr std::uint32_t kBlock = 128;
  std::array<std::uint16_t, kCodePoints / kBlock> block{};
  std::vector<std::uint8_t> kinds;

  Kinds() {
    std::vector<std::uint8_t> all;
    all.reserve(kCodePoints);
    for (const char* at = kCategoryRuns; *at != '\0';) {
      const int category = *at >= 'a' ? *at - 'a' + 26 : *at - 'A';
      std::uint32_t count = 0;
      for (++at; *at >= '0' && *at <= '9'; ++at)
        count = 10 * count + static_cast<std::uint32_t>(*at - '0');
      all.insert(all.end(), std::max(count, 1u), static_cast<std::uint8_t>(category));
    }
    all.resize(kCodePoints, kUnassigned);
    for (const std::uint32_t code : {0x9, 0xa, 0xb, 0xc, 0xd, 0x85}) all[code] |= kWhiteSpace;
    for (std::uint8_t& kind : all)  // Zs, Zl and Zp
      if (kCategoryNames[2 * (kind & ~kWhiteSpace)] == 'Z') kind |= kWhiteSpace;
    for (std::uint32_t code = 0; code < kCodePoints; code += kBlock) {
      const auto begin = all.begin() + code;
      std::size_t at = 0;
      while (at < kinds.size() &&
             !std::equal(begin, begin + kBlock, kinds.begin() + static_cast<std::ptrdiff_t>(at)))
        at += kBlock;
      if (at == kinds.size()) kinds.insert(kinds.end(), begin, begin + kBlock);
      block[code / kBlock] = static_cast<std::uint16_t>(at / kBlock);
    }
  }
};

// Normal form C. A text is decomposed where a character is that may change, and composed again with
// the one before.

// Syllables of Hangul are composed by arithmetic (Unicode Standard, 3.12)
constexpr std::uint32_t kSyllables = 0xac00, kLeads = 0x1100, kVowels = 0x1161, kTrails = 0x11a7,
                        kLeadCount = 19, kVowelCount = 21, kTrailCount = 28;

/// Numbers as scripts/unicode_table.py writes them.
class Numbers {
 public:
  explicit Numbers(const char* at) : at_(at) {}
  bool more() const { return *at_ != '\0'; }
  std::uint32_t next() {
    constexpr std::string_view kDigits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::uint32_t value = 0, digit = 32;
    for (int shift = 0; digit >= 32; shift += 5) {
      digit = static_cast<std::uint32_t>(kDigits.find(*at_++));
      value |= (digit & 31) << shift;
    }
    return value;
  }
  std::uint32_t next_from(std::uint32_t before) {
    const std::uint32_t value = next();
    return value % 2 == 0 ? before + value / 2 : before - (value + 1) / 2;
  }

 private:
  const char* at_;
};

struct Forms {
  struct Parts {
    std::uint32_t first, second;  ///< 0: none
  };
  std::unordered_map<std::uint32_t, Parts> parts;
  std::unordered_map<std::uint64_t, std::uint32_t> whole;
  std::unordered_map<std::uint32_t, std::uint8_t> combining;
  /// Of code points that may not stay as they are behind others, a bit each
  std::vector<bool> moves = std::vector<bool>(kCodePoints);

  Forms() {
    std::uint32_t code = 0, first = 0, second = 0;
    for (Numbers numbers(kDecompositions); numbers.more();) {
      const std::uint32_t distance = numbers.next();
      code += distance / 2;
      first = numbers.next_from(first), second = numbers.next_from(second);
      parts[code] = {first, second};
      if (distance % 2 == 1) {
        whole[std::uint64_t{first} << 32 | second] = code;
        moves[second] = true;
      } else {
        moves[code] = true;
      }
    }
    std::uint32_t at = 0;
    for (Numbers numbers(kCombiningClasses); numbers.more();) {
      at += numbers.next();
      const std::uint32_t count = numbers.next(), value = numbers.next();
      for (const std::uint32_t end = at + count; at < end; ++at) {
        combining[at] = static_cast<std::uint8_t>(value);
        moves[at] = true;
      }
    }
    for (std::uint32_t v = 0; v < kVowelCount; ++v) moves[kVowels + v] = true;
    for (std::uint32_t t = 1; t < kTrailCount; ++t) moves[kTrails + t] = true;
  }
  std::uint8_t class_of(std::uint32_t code) const {
    const auto it = combining.find(code);
    return it == combining.end() ? 0 : it->second;
  }
  void take_apart(std::uint32_t code, std::u32string& to) const {
    if (const std::uint32_t syllable = code - kSyllables;
        syllable < kLeadCount * kVowelCount * kTrailCount) {
      to += static_cast<char32_t>(kLeads + syllable / (kVowelCount * kTrailCount));
      to += static_cast<char32_t>(kVowels + syllable / kTrailCount % kVowelCount);
      if (syllable % kTrailCount > 0) to += static_cast<char32_t>(kTrails + syllable % kTrailCount);
      return;
    }
    const auto it = parts.find(code);
    if (it == parts.end()) return to.push_back(static_cast<char32_t>(code));
    take_apart(it->second.first, to);
    if (it->second.second != 0) take_apart(it->second.second, to);
  }
  /// 0 where the two do not become one.
  std::uint32_t together(std::uint32_t first, std::uint32_t second) const {
    const std::uint32_t lead = first - kLeads, vowel = second - kVowels, trail = second - kTrails,
                        syllable = first - kSyllables;
    if (lead < kLeadCount && vowel < kVowelCount)
      return kSyllables + (lead * kVowelCount + vowel) * kTrailCount;
    if (syllable < kLeadCount * kVowelCount * kTrailCount && syllable % kTrailCount == 0 &&
        trail > 0 && trail < kTrailCount)
      return first + trail;
    const auto it = whole.find(std::uint64_t{first} << 32 | second);
    return it == whole.end() ? 0 : it->second;
  }
  void compose(std::u32string& text) const {
    for (std::size_t begin = 0; begin < text.size();) {  // order by combining class
      std::size_t end = begin;
      while (end < text.size() && class_of(text[end]) != 0) ++end;
      std::stable_sort(text.begin() + static_cast<std::ptrdiff_t>(begin),
                       text.begin() + static_cast<std::ptrdiff_t>(end),
                       [&](char32_t a, char32_t b) { return class_of(a) < class_of(b); });
      begin = end + 1;
    }
    constexpr std::size_t kNone = static_cast<std::size_t>(-1);
    std::size_t count = 0, starter = kNone;
    int last = -1;  // the class of what stands between the starter and the next
    for (const char32_t code : text) {
      const int own = class_of(code);
      const std::uint32_t one = starter != kNone && last < own ? together(text[starter], code) : 0;
      if (one != 0) {
        text[starter] = static_cast<char32_t>(one);
        continue;
      }
      if (own == 0)
        starter = count, last = -1;
      else
        last = own;
      text[count++] = code;
    }
    text.resize(count);
  }
};

}  // namespace

std::uint8_t kind_of(std::uint32_t code) {
  static const Kinds table;
  if (code >= kCodePoints) return kUnassigned;
  return table.kinds[table.block[code / Kinds::kBlock] * Kinds::kBlock + code % Kinds::kBlock];
}

bool is_blank(std::uint32_t code) {
  return (kind_of(code) & kWhiteSpace) != 0 || (code >= 0x1c && code <= 0x1f);
}

std::size_t without_blanks(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    std::size_t at = end - 1;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
    if (!is_utf8(text.substr(at, end - at)) || !is_blank(decode_utf8(text.data() + at).code)) break;
    end = at;
  }
  return end;
}

std::string_view composed(std::string_view text, std::string& buffer) {
  static const Forms forms;
  const char* const data = text.data();
  std::size_t at = 0, before = 0, done = 0;  // `before`: where the character before `at` begins
  buffer.clear();
  std::u32string piece;
  while (at < text.size()) {
    if (static_cast<unsigned char>(data[at]) < 0x80) {
      before = at++;
      continue;
    }
    const Decoded decoded = decode_utf8(data + at);
    if (!forms.moves[decoded.code]) {
      before = at, at += decoded.bytes;
      continue;
    }
    piece.clear();
    const std::size_t begin = at == 0 ? 0 : std::max(before, done);
    at = begin;
    for (bool first = true; at < text.size(); first = false) {
      const Decoded next = decode_utf8(data + at);
      if (!first && !forms.moves[next.code]) break;
      forms.take_apart(next.code, piece);
      at += next.bytes;
    }
    forms.compose(piece);
    buffer.append(text.substr(done, begin - done));
    for (const char32_t code : piece) append_utf8(buffer, code);
    before = done = at;
  }
  if (done == 0) return text;
  buffer.append(text.substr(done));
  return buffer;
}

}  // namespace starling::unicode
