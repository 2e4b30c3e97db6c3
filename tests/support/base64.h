#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace starling::test {

/// The bytes of golden files.
inline std::vector<std::uint8_t> from_base64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<std::uint8_t> bytes;
  std::uint32_t word = 0;
  int bits = 0;
  for (const char c : text) {
    if (c == '=') break;
    word = word << 6 | static_cast<std::uint32_t>(digits.find(c));
    bits += 6;
    if (bits >= 8) bytes.push_back(static_cast<std::uint8_t>(word >> (bits -= 8)));
  }
  return bytes;
}

}  // namespace starling::test
