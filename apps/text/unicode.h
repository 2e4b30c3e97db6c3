#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace starling::unicode {

constexpr int kCategories = 30;
/// General categories (Unicode Standard, 4.5), in the order of kCategoryRuns' letters.
constexpr std::string_view kCategoryNames =
    "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCoCn";
constexpr std::uint32_t kCodePoints = 0x110000;
extern const char *const kCategoryRuns, *const kDecompositions, *const kCombiningClasses;

/// The category of a code point, and kWhiteSpace where it has that property (PropList.txt).
constexpr std::uint8_t kWhiteSpace = 0x20;
std::uint8_t kind_of(std::uint32_t code);

/// White space as Python's str.strip() has it.
bool is_blank(std::uint32_t code);
/// The length of a text without such at its end.
std::size_t without_blanks(std::string_view text);

/// Normal form C (Unicode Standard Annex 15) of valid UTF-8: `buffer` where it differs.
std::string_view composed(std::string_view text, std::string& buffer);

}  // namespace starling::unicode
