#include "core/checksum.h"

#include <fmt/format.h>
#define XXH_STATIC_LINKING_ONLY  // for the type of the state
#include <xxhash.h>

namespace starling {

std::string checksum(const void* data, std::size_t bytes) {
  return fmt::format("{:016x}", XXH3_64bits(data, bytes));
}

struct ChecksumOfPieces::State {
  XXH3_state_t xxh3;
};

ChecksumOfPieces::ChecksumOfPieces() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->xxh3);
}

ChecksumOfPieces::~ChecksumOfPieces() = default;

void ChecksumOfPieces::add(const void* data, std::size_t bytes) {
  XXH3_64bits_update(&state_->xxh3, data, bytes);
}

std::string ChecksumOfPieces::take() {
  std::string text = fmt::format("{:016x}", XXH3_64bits_digest(&state_->xxh3));
  XXH3_64bits_reset(&state_->xxh3);
  return text;
}

}  // namespace starling
