// EXIF (CIPA DC-008): a TIFF header, then a directory of 12-byte entries. XMP (ISO 16684): XML.
#include <cstring>
#include <iterator>

#include "apps/pictures/codec.h"

namespace starling {
namespace {

int sensible(std::uint32_t orientation) {
  return orientation >= 1 && orientation <= 8 ? static_cast<int>(orientation) : 1;
}

}  // namespace

int exif_orientation(std::span<const std::uint8_t> exif) {
  constexpr std::uint32_t kOrientationTag = 0x0112;
  constexpr std::size_t kBytesOfType[] = {0, 0, 0, 2, 4};  // SHORT and LONG
  constexpr std::uint8_t kPrefix[] = {'E', 'x', 'i', 'f', 0, 0};
  while (exif.size() >= sizeof kPrefix && std::memcmp(exif.data(), kPrefix, sizeof kPrefix) == 0)
    exif = exif.subspan(sizeof kPrefix);
  if (exif.size() < 8) return 0;
  const bool little = exif[0] == 'I' && exif[1] == 'I';
  if (!little && !(exif[0] == 'M' && exif[1] == 'M')) return 0;
  const auto number = [&](std::size_t at, std::size_t bytes) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i)
      value = value << 8 | exif[at + (little ? bytes - 1 - i : i)];
    return value;
  };
  const std::size_t directory = number(4, 4);
  if (number(2, 2) != 42 || directory + 2 > exif.size()) return 0;
  const std::size_t entries = number(directory, 2);
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + 12 * i;
    if (entry + 12 > exif.size()) return 0;
    if (number(entry, 2) != kOrientationTag) continue;
    const std::size_t type = number(entry + 2, 2);
    return type < std::size(kBytesOfType) && kBytesOfType[type] > 0
               ? sensible(number(entry + 8, kBytesOfType[type]))
               : 1;
  }
  return 0;
}

int xmp_orientation(std::string_view packet) {
  constexpr std::string_view kName = "tiff:Orientation";
  for (std::size_t at = packet.find(kName); at != std::string_view::npos; at = packet.find(kName)) {
    packet.remove_prefix(at + kName.size());
    std::string_view value = packet;
    if (value.starts_with("=\""))
      value.remove_prefix(2);
    else if (value.starts_with(">"))
      value.remove_prefix(1);
    else
      continue;
    if (!value.empty() && value[0] >= '0' && value[0] <= '9')
      return sensible(static_cast<std::uint32_t>(value[0] - '0'));
  }
  return 0;
}

}  // namespace starling
