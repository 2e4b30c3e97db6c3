#pragma once

#include <array>
#include <string>

namespace starling::detail {

/// 32 random bytes that all ranks of a job know and nobody else.
using Secret = std::array<unsigned char, 32>;

Secret draw_secret();
/// Reads a file of 64 hexadecimal digits, as `openssl rand -hex 32` writes them. Error(kUsage) for
/// other content, and for a file that others than its owner may read or that is not this user's.
Secret read_secret(const std::string& path);
/// The same from the file's text; `path` is for errors.
Secret parse_secret(const std::string& text, const std::string& path);

}  // namespace starling::detail
