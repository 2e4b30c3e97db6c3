#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace starling {

/// 64-bit XXH3 as 16 hexadecimal digits, like Python's `xxhash.xxh3_64_hexdigest`. Limited by
/// memory bandwidth. Detects accidental corruption; not cryptographic.
std::string checksum(const void* data, std::size_t bytes);
inline std::string checksum(std::string_view text) { return checksum(text.data(), text.size()); }

/// The checksum of data added in pieces.
class ChecksumOfPieces {
 public:
  ChecksumOfPieces();
  ~ChecksumOfPieces();
  ChecksumOfPieces(const ChecksumOfPieces&) = delete;
  ChecksumOfPieces& operator=(const ChecksumOfPieces&) = delete;

  void add(const void* data, std::size_t bytes);
  /// The checksum of all that was added; resets it.
  std::string take();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace starling
