#include "apps/text/unicode.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace starling::unicode {
namespace {

/// Kinds by blocks of code points, of which many are alike.
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
    all.resize(kCodePoints, static_cast<std::uint8_t>(Category::kCn));
    for (const std::uint32_t code : {0x9, 0xa, 0xb, 0xc, 0xd, 0x85}) all[code] |= kWhiteSpace;
    for (std::uint8_t& kind : all) {
      const auto category = static_cast<Category>(kind & ~kWhiteSpace);
      if (category == Category::kZs || category == Category::kZl || category == Category::kZp)
        kind |= kWhiteSpace;
    }
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

/// Bytes of the character at `at`, or 0 where it is none; then `good` is how many of its bytes one
/// could begin with (at least 1).
std::size_t character(std::string_view text, std::size_t at, std::size_t& good) {
  const auto byte = [&](std::size_t i) {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
  };
  const unsigned first = byte(0);
  good = 1;
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
    if ((byte(good) & 0xc0) != 0x80) return 0;
  }
  return count;
}

}  // namespace

std::uint8_t kind_of(std::uint32_t code) {
  static const Kinds table;
  if (code >= kCodePoints) return static_cast<std::uint8_t>(Category::kCn);
  return table.kinds[table.block[code / Kinds::kBlock] * Kinds::kBlock + code % Kinds::kBlock];
}

void append(std::string& text, std::uint32_t code) {
  const auto put = [&](std::uint32_t byte) { text += static_cast<char>(byte); };
  const auto more = [&](int shift) { put(0x80 | ((code >> shift) & 0x3f)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) return put(0xc0 | code >> 6), more(0);
  if (code < 0x10000) return put(0xe0 | code >> 12), more(6), more(0);
  put(0xf0 | code >> 18), more(12), more(6), more(0);
}

std::size_t valid_bytes(std::string_view text) {
  std::size_t at = 0, good = 0;
  while (at < text.size()) {
    std::uint64_t eight = 0;
    if (at + sizeof eight <= text.size()) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const std::size_t bytes = character(text, at, good);
    if (bytes == 0) return at;
    at += bytes;
  }
  return at;
}

std::string repaired(std::string_view text) {
  std::string result;
  for (std::size_t at = 0;;) {
    const std::size_t valid = valid_bytes(text.substr(at));
    result += text.substr(at, valid);
    at += valid;
    if (at == text.size()) return result;
    std::size_t good = 0;
    character(text, at, good);
    result += "\xEF\xBF\xBD";
    at += good;
  }
}

}  // namespace starling::unicode
