#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/inference/companions.h"
#include "apps/inference/inference.h"
#include "apps/text/tokenizer.h"
#include "core/backend.h"
#include "layers/layer.h"

namespace starling {

/// The log-likelihood of the last `count` tokens, each given all before it. Error(kUsage) where
/// more tokens than the model's context stand before the last, or none before the first of them.
TextScore score_tokens(Model& model, Backend& backend, std::span<const std::int32_t> tokens,
                       std::int64_t count);
/// How many tokens a model takes at once.
std::int64_t context_of(Model& model);

/// Tokens of a context and of what follows it, as lm-evaluation-harness has them: the context's
/// own, and those of both together behind as many; blanks at the context's end (Python's
/// str.rstrip) go with the rest. What the tokenizer puts before a text stands there, unless the
/// text begins with it. An empty context is the token that begins texts, or else the one that ends
/// them, which the rest may begin with. Error(kUsage) where there is neither.
struct ScoredTokens {
  std::vector<std::int32_t> tokens;
  std::int64_t count = 0;  ///< of the continuation
};
ScoredTokens tokens_to_score(const Tokenizer& tokenizer, const TextBounds& bounds,
                             std::string_view context, std::string_view continuation);

}  // namespace starling
