#include "apps/inference/scoring.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "apps/inference/generation.h"
#include "apps/text/unicode.h"
#include "core/error.h"
#include "core/text.h"
#include "layers/functions.h"
#include "layers/language_model.h"

namespace starling {
namespace {

/// Adds the score of a token that follows.
void add(std::span<const float> logits, std::int32_t token, TextScore& score) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  const auto most = static_cast<double>(*largest);
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - most);
  const double own = static_cast<double>(logits[static_cast<std::size_t>(token)]);
  score.logprob += own - most - std::log(sum);
  score.greedy = score.greedy && largest - logits.begin() == token;
  ++score.tokens;
}

bool is_blank(std::uint32_t code) {
  return (unicode::kind_of(code) & unicode::kWhiteSpace) != 0 || (code >= 0x1c && code <= 0x1f);
}

/// The length of a text without blanks at its end.
std::size_t without_blanks(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    std::size_t at = end - 1;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
    if (!is_utf8(text.substr(at, end - at)) || !is_blank(decode_utf8(text.data() + at).code)) break;
    end = at;
  }
  return end;
}

}  // namespace

std::int64_t context_of(Model& model) {
  const LanguageModel* const text = model.language_model();
  return text ? text->context() : model.input_shape().back();
}

TextScore score_tokens(Model& model, Backend& backend, std::span<const std::int32_t> tokens,
                       std::int64_t count) {
  const auto inputs = static_cast<std::int64_t>(tokens.size()) - 1, context = context_of(model);
  require(count >= 0 && count <= inputs, "score", "{} of {} tokens", count, inputs + 1);
  if (inputs > context)
    fail(ExitCode::kUsage, "score", "{} tokens stand before the last; allowed: {}, the context",
         inputs, context);
  TextScore score;
  if (count == 0) return score;
  LanguageModel* const text = model.language_model();
  std::vector<std::int32_t> given(tokens.begin(), tokens.end() - 1);
  // A plug-in's model may take one length alone; as it is causal, what follows changes nothing
  if (!text) given.resize(static_cast<std::size_t>(context));
  const Tensor input(backend, Shape{1, static_cast<std::int64_t>(given.size())}, DType::kInt32);
  backend.copy_from_host(given.data(), input);
  Pass pass{backend};
  const Tensor all = text ? text->hidden(Variable(input), pass).value()
                          : model.forward(Variable(input), pass).value();
  const std::int64_t width = all.shape().back();
  const Tensor rows = all.slice((inputs - count) * width, Shape{count, width});
  std::vector<float> numbers;
  const auto take = [&](std::int64_t first, std::int64_t many, const Tensor& logits) {
    Tensor wide = logits;
    if (logits.dtype() != DType::kFloat32) {
      wide = Tensor(backend, logits.shape(), DType::kFloat32);
      backend.cast({.x = logits, .y = wide});
    }
    numbers.resize(static_cast<std::size_t>(wide.elements()));
    backend.copy_to_host(wide, numbers.data());
    const auto vocab = static_cast<std::size_t>(wide.shape().back());
    for (std::size_t row = 0; row < static_cast<std::size_t>(many); ++row)
      add(std::span(numbers).subspan(row * vocab, vocab),
          tokens[tokens.size() - static_cast<std::size_t>(count - first) + row], score);
  };
  if (!text) {
    take(0, count, rows);
  } else {
    functions::logits_by_rows(
        backend, rows, text->head().operand(), 0,
        [&](std::int64_t first, const View& logits) {
          take(first, logits.shape()[0], logits.tensor());
        },
        -std::numeric_limits<double>::infinity());
  }
  if (!std::isfinite(score.logprob))
    fail(ExitCode::kUsage, "score",
         "the model's scores are no finite numbers; train it longer, or with a smaller learning "
         "rate");
  return score;
}

ScoredTokens tokens_to_score(const Tokenizer& tokenizer, const TextBounds& bounds,
                             std::string_view context, std::string_view continuation) {
  ScoredTokens result;
  std::vector<std::int32_t>& tokens = result.tokens;
  const std::vector<std::int32_t>& from = bounds.begin.empty() ? bounds.ends : bounds.begin;
  const std::string_view word = from.empty() ? "" : tokenizer.bytes_of(from.front());
  const auto begun = [&](std::string_view text) {
    const bool has = !word.empty() && text.starts_with(word);
    return prompt_tokens(tokenizer, has ? TextBounds() : bounds, text);
  };
  const auto count = [](const std::vector<std::int32_t>& some) { return std::ssize(some); };
  if (context.empty()) {
    if (from.empty())
      fail(ExitCode::kUsage, "score", {.key = "context"},
           "is empty, and the model has no token that begins or ends texts; give a context");
    tokenizer.encode(continuation, tokens);
    if (tokens.empty() || tokens.front() != from.front())
      tokens.insert(tokens.begin(), from.front());
    result.count = count(tokens) - 1;
    return result;
  }
  tokens = begun(context.substr(0, without_blanks(context)));
  const std::vector<std::int32_t> whole = begun(std::string(context) + std::string(continuation));
  const std::int64_t given = std::min(count(tokens), count(whole));
  result.count = count(whole) - given;
  tokens.insert(tokens.end(), whole.begin() + given, whole.end());
  if (count(tokens) > result.count) return result;
  // A context of blanks alone has no token before the first
  if (!from.empty())
    tokens.insert(tokens.begin(), from.front());
  else
    result.count = std::max<std::int64_t>(0, result.count - 1);
  return result;
}

}  // namespace starling
