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
  /// Tokens so far.
  std::int64_t tokens() const { return tokens_; }
  /// The next tokens are the first ones again.
  void clear() { tokens_ = 0; }
  /// A pass over `tokens` new ones is done.
  void advance(std::int64_t tokens) {
    tokens_ += tokens;
    calls_ = 0;
  }

  struct Heads {
    View keys, values;
  };
  /// For attention: appends the keys and values of new tokens, N×Hkv×T×D, and gives those of all,
  /// N×Hkv×(tokens + T)×D. Calls come in the same order in each pass.
  Heads append(const View& keys, const View& values);

 private:
  std::int64_t tokens_ = 0;
  std::size_t calls_ = 0;                      ///< in this pass
  std::vector<std::array<Tensor, 2>> memory_;  ///< of each call: N×Hkv×places×D
};

/// The number of the first token of a pass in its sequence.
inline std::int64_t first_position(const Pass& pass) {
  const auto* const cache = pass.find<KeyValueCache>();
  return cache ? cache->tokens() : 0;
}

}  // namespace starling
