// EXIF (CIPA DC-008): a TIFF header, then a directory of 12-byte entries.
#include "apps/pictures/codec.h"

namespace starling {

int exif_orientation(std::span<const std::uint8_t> tiff) {
  constexpr std::uint32_t kOrientationTag = 0x0112, kShort = 3;
  if (tiff.size() < 8) return 1;
  const bool little = tiff[0] == 'I' && tiff[1] == 'I';
  if (!little && !(tiff[0] == 'M' && tiff[1] == 'M')) return 1;
  const auto number = [&](std::size_t at, std::size_t bytes) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i) value = value << 8 | tiff[at + (little ? bytes - 1 - i : i)];
    return value;
  };
  const std::size_t directory = number(4, 4);
  if (number(2, 2) != 42 || directory + 2 > tiff.size()) return 1;
  const std::size_t entries = number(directory, 2);
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + 12 * i;
    if (entry + 12 > tiff.size()) return 1;
    if (number(entry, 2) != kOrientationTag) continue;
    const std::uint32_t value = number(entry + 8, 2);
    return number(entry + 2, 2) == kShort && value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

}  // namespace starling
