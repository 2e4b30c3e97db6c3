#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/autograd.h"
#include "core/view.h"

namespace starling {

/// Keys and values of all attention calls for the tokens so far. A pass with this extension
/// computes new tokens only, which attend to the cached ones; it must not have a tape. For one
/// model. Memory grows with the number of tokens.
class KeyValueCache : public PassExtension {
 public:
  std::int64_t tokens() const { return tokens_; }
  /// Starts over with an empty cache.
  void clear() { tokens_ = 0; }
  /// Called after a pass over `tokens` new tokens.
  void advance(std::int64_t tokens) {
    tokens_ += tokens;
    calls_ = 0;
  }

  struct Heads {
    View keys, values;
  };
  /// Appends the keys and values of new tokens, N×Hkv×T×D, and returns those of all tokens,
  /// N×Hkv×(tokens + T)×D. Every pass must make its calls in the same order.
  Heads append(const View& keys, const View& values);

 private:
  std::int64_t tokens_ = 0;
  std::size_t calls_ = 0;                      ///< in this pass
  std::vector<std::array<Tensor, 2>> memory_;  ///< of each call: N×Hkv×capacity×D
};

/// The index in its sequence of the first token of a pass.
inline std::int64_t first_position(const Pass& pass) {
  const auto* const cache = pass.find<KeyValueCache>();
  return cache ? cache->tokens() : 0;
}

}  // namespace starling
