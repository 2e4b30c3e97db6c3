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

/// Error(kUsage) names the option that is not allowed.
void check_options(const GenerateOptions& options);

/// The token that follows at a position of the text, of which one has these logits. As Hugging
/// Face's warpers have it, in this order: logits over temperature; of them those that are not below
/// the k-th largest; of these, from the largest on (of equal ones the lower number), as few as come
/// to a probability of top_p. Then u of [0, 1), Philox's number of (seed, position): the first
/// token, in the order of numbers, at which the sum of probabilities is above u. Error(kUsage)
/// where a logit is no number.
std::int32_t choose_token(std::span<const float> logits, const GenerateOptions& options,
                          std::int64_t position);

/// Logits of the token that follows a text, which grows. With more tokens than the context the
/// oldest half leaves, and the others are computed anew, from position 0 on: what token by token
/// would come to, however many are given at once.
///
/// Any causal model will do, tokens {T} to logits {T, vocab}: its context is a LanguageModel's own,
/// of others the T that it was set up for. One with a cache computes new tokens alone; of another
/// the whole window is computed for each token.
class TextContext {
 public:
  TextContext(Model& model, Backend& backend);
  /// One or more tokens, which the model has; logits of the one behind them, as fp32.
  std::vector<float> after(std::span<const std::int32_t> tokens);
  std::int64_t tokens() const { return tokens_; }  ///< so far, those that left included

 private:
  /// {1, vocab}: those behind the window.
  Tensor logits();

  Model& model_;
  LanguageModel* text_;  ///< null: it is another model
  Backend& backend_;
  KeyValueCache cache_;
  std::vector<std::int32_t> window_;  ///< what the next token sees
  std::int64_t tokens_ = 0;
};

/// Goes on with tokens, one or more, which the model has: see InferenceModel::generate().
/// `tokenizer`: null where none is known.
Generated generate(Model& model, Backend& backend, const Tokenizer* tokenizer,
                   const TextBounds& bounds, std::span<const std::int32_t> prompt,
                   const GenerateOptions& options, const EachPiece& each);
/// A prompt's tokens, behind what a text begins with.
std::vector<std::int32_t> prompt_tokens(const Tokenizer& tokenizer, const TextBounds& bounds,
                                        std::string_view prompt);

/// How many bytes of a text are there without a last character that is not whole yet.
std::size_t whole_characters(std::string_view text);

}  // namespace starling
