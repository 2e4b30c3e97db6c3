#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace starling::unicode {

/// General categories (Unicode Standard, 4.5), in the order of kCategoryRuns' letters.
// clang-format off
enum class Category : std::uint8_t {
  kLu, kLl, kLt, kLm, kLo, kMn, kMc, kMe, kNd, kNl, kNo, kPc, kPd, kPs, kPe,
  kPi, kPf, kPo, kSm, kSc, kSk, kSo, kZs, kZl, kZp, kCc, kCf, kCs, kCo, kCn
};
// clang-format on
constexpr int kCategories = 30;
constexpr std::string_view kCategoryNames =
    "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCoCn";
constexpr std::uint32_t kCodePoints = 0x110000;
extern const char* const kCategoryRuns;

/// The category of a code point, and kWhiteSpace where it has that property (PropList.txt).
constexpr std::uint8_t kWhiteSpace = 0x20;
std::uint8_t kind_of(std::uint32_t code);

/// A code point of valid UTF-8 and its bytes.
struct Decoded {
  std::uint32_t code;
  std::uint32_t bytes;
};
inline Decoded decode(const char* at) {
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
void append(std::string& text, std::uint32_t code);

/// How many bytes of a text are valid UTF-8 from its start on.
std::size_t valid_bytes(std::string_view text);
/// The text with U+FFFD in place of what is no UTF-8, one for each maximal part of a character
/// (Unicode Standard, 3.9; Python's errors="replace").
std::string repaired(std::string_view text);

}  // namespace starling::unicode
