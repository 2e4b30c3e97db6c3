#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "apps/inference/companions.h"
#include "apps/inference/inference.h"
#include "apps/text/tokenizer.h"
#include "core/backend.h"
#include "layers/language_model.h"

namespace starling {

/// Error(kUsage) with the first invalid option.
void check_options(const GenerateOptions& options);

/// Chooses the token at a position, given its logits. Like Hugging Face's warpers, in this order:
/// divides by temperature; keeps logits not below the k-th largest; of these keeps the fewest
/// largest ones (of equal ones the lower index) with a total probability of top_p. Then draws u in
/// [0, 1) by Philox from (seed, position), and takes the first token, by index, whose cumulative
/// probability exceeds u. Error(kUsage) if a logit is NaN.
std::int32_t choose_token(std::span<const float> logits, const GenerateOptions& options,
                          std::int64_t position);

/// How many tokens a model takes at once.
std::int64_t context_of(Model& model);
/// A tensor's numbers, in fp32.
void read_numbers(const Tensor& tensor, std::vector<float>& numbers);

/// A growing text, and the logits of its next token. When it exceeds the model's context the older
/// half is dropped and the rest recomputed from position 0, with the same result for tokens added
/// one at a time or together.
///
/// Works with any causal model of tokens {T} to logits {T, vocab}. The context is that of a
/// LanguageModel, otherwise T. Models with a cache compute new tokens only; others recompute the
/// whole window for each token.
class TextContext {
 public:
  TextContext(Model& model, Backend& backend);
  /// Appends one or more valid tokens, and returns the logits of the next one.
  std::vector<float> after(std::span<const std::int32_t> tokens);
  std::int64_t tokens() const { return tokens_; }  ///< so far, including dropped ones

 private:
  /// {1, vocab}: of the token after the window.
  Tensor logits();

  Model& model_;
  LanguageModel* text_;  ///< null for other models
  Backend& backend_;
  KeyValueCache cache_;
  std::vector<std::int32_t> window_;  ///< the tokens in the context
  std::int64_t tokens_ = 0;
};

/// Continues one or more valid tokens: see InferenceModel::generate(). `tokenizer` may be null.
Generated generate(Model& model, Backend& backend, const Tokenizer* tokenizer,
                   const TextBounds& bounds, std::span<const std::int32_t> prompt,
                   const GenerateOptions& options, const EachPiece& each);
/// A prompt's tokens, preceded by a bos token if the tokenizer adds one.
std::vector<std::int32_t> prompt_tokens(const Tokenizer& tokenizer, const TextBounds& bounds,
                                        std::string_view prompt);

/// The log-likelihood of the last `count` tokens, each given all before it. Error(kUsage) where
/// more tokens than the model's context stand before the last, or none before the first of them.
TextScore score_tokens(Model& model, Backend& backend, std::span<const std::int32_t> tokens,
                       std::int64_t count);

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

/// The length of a text without an incomplete UTF-8 character at the end.
std::size_t whole_characters(std::string_view text);

}  // namespace starling
