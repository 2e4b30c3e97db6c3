#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace starling {

/// XXH3 in 64 bits as 16 hexadecimal digits, as `xxhash.xxh3_64_hexdigest` of Python has it. Runs
/// at the speed of memory, and finds what disks, cables and memory break; it is no protection
/// against somebody who means to deceive.
std::string checksum(const void* data, std::size_t bytes);
inline std::string checksum(std::string_view text) { return checksum(text.data(), text.size()); }

/// The checksum of bytes that come in pieces.
class ChecksumOfPieces {
 public:
  ChecksumOfPieces();
  ~ChecksumOfPieces();
  ChecksumOfPieces(const ChecksumOfPieces&) = delete;
  ChecksumOfPieces& operator=(const ChecksumOfPieces&) = delete;

  void add(const void* data, std::size_t bytes);
  /// Takes the checksum of all that was added; then it begins anew.
  std::string take();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace starling
