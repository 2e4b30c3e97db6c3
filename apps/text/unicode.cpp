#include "apps/text/unicode.h"

#include <algorithm>
#include <array>
#include <vector>

namespace starling::unicode {
namespace {

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

}  // namespace

std::uint8_t kind_of(std::uint32_t code) {
  static const Kinds table;
  if (code >= kCodePoints) return static_cast<std::uint8_t>(Category::kCn);
  return table.kinds[table.block[code / Kinds::kBlock] * Kinds::kBlock + code % Kinds::kBlock];
}

}  // namespace starling::unicode
