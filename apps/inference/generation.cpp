#include "apps/inference/generation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>

#include "apps/text/unicode.h"
#include "core/error.h"
#include "core/operations/pointwise.h"
#include "core/operations/products.h"
#include "core/philox.h"
#include "core/text.h"
#include "layers/functions.h"

namespace starling {
namespace {

/// Takes those out that are not among the most probable ones which have top_p of the probability.
void keep_most_probable(std::vector<double>& weights, double top_p) {
  double all = 0.0;
  for (const double weight : weights) all += weight;
  const auto less = [&](std::size_t a, std::size_t b) {
    return weights[a] != weights[b] ? weights[a] < weights[b] : a > b;
  };
  std::vector<std::size_t> heap;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] > 0.0) heap.push_back(i);
  }
  std::make_heap(heap.begin(), heap.end(), less);
  auto end = heap.end();
  for (double kept = 0.0; end != heap.begin() && kept < top_p * all; --end) {
    std::pop_heap(heap.begin(), end, less);
    kept += weights[*(end - 1)];
  }
  for (auto left = heap.begin(); left != end; ++left) weights[*left] = 0.0;
}

/// A language model's hidden states after `tokens`, of other models the logits: a row for each.
Tensor outputs_of(Model& model, std::vector<std::int32_t> tokens, KeyValueCache* cache,
                  Pass& pass) {
  LanguageModel* const text = model.language_model();
  // A plug-in's model may take one length alone; as it is causal, what follows changes nothing
  if (!text) tokens.resize(static_cast<std::size_t>(model.input_shape().back()));
  const Tensor input(pass.backend, Shape{1, std::ssize(tokens)}, DType::kInt32);
  pass.backend.copy_from_host(tokens.data(), input);
  const Variable given(input);
  if (!text) return model.forward(given, pass).value();
  return cache ? text->hidden(given, *cache, pass).value() : text->hidden(given, pass).value();
}

/// How many bytes at a text's end may be the beginning of a stop.
std::size_t held_back(std::string_view text, std::span<const std::string> stops) {
  std::size_t most = 0;
  for (const std::string& stop : stops) {
    for (std::size_t n = std::min(stop.size() - 1, text.size()); n > most; --n) {
      if (text.ends_with(std::string_view(stop).substr(0, n))) most = n;
    }
  }
  return most;
}

/// The position of the first stop text; npos: none.
std::size_t first_stop(std::string_view text, std::span<const std::string> stops) {
  std::size_t first = std::string_view::npos;
  for (const std::string& stop : stops) first = std::min(first, text.find(stop));
  return first;
}

/// Adds the score of a token that follows.
void add_score(std::span<const float> logits, std::int32_t token, TextScore& score) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  const auto most = static_cast<double>(*largest);
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - most);
  const double own = static_cast<double>(logits[static_cast<std::size_t>(token)]);
  score.logprob += own - most - std::log(sum);
  score.greedy = score.greedy && largest - logits.begin() == token;
  ++score.tokens;
}

}  // namespace

void check_options(const GenerateOptions& options) {
  const auto refuse = [](const char* name, auto value, const char* allowed) {
    fail(ExitCode::kUsage, "generate", {.key = name}, "is {}; allowed: {}", value, allowed);
  };
  if (options.tokens < 1) refuse("tokens", options.tokens, ">= 1");
  if (!(options.temperature >= 0.0) || !std::isfinite(options.temperature))
    refuse("temperature", options.temperature, ">= 0");
  if (options.top_k < 0) refuse("top-k", options.top_k, ">= 0, where 0 is all");
  if (!(options.top_p > 0.0 && options.top_p <= 1.0))
    refuse("top-p", options.top_p, "above 0 and at most 1, where 1 is all");
  for (const std::string& stop : options.stop) {
    if (stop.empty()) refuse("stop", "''", "a text of one character or more");
  }
}
std::int32_t choose_token(std::span<const float> logits, const GenerateOptions& options,
                          std::int64_t position) {
  require(!logits.empty(), "generate", "there are no logits");
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (std::any_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); }) ||
      !std::isfinite(*largest))
    fail(ExitCode::kUsage, "generate",
         "the model's scores of token {} are no finite numbers; train it longer, or with a smaller "
         "learning rate",
         position);
  if (options.temperature == 0.0) return static_cast<std::int32_t>(largest - logits.begin());
  float least = -INFINITY;
  if (const auto k = static_cast<std::size_t>(options.top_k); k > 0 && k < logits.size()) {
    std::vector<float> sorted(logits.begin(), logits.end());
    const auto last = sorted.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(sorted.begin(), last, sorted.end(), std::greater<>());
    least = *last;
  }
  std::vector<double> weights(logits.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (logits[i] >= least)
      weights[i] = std::exp((static_cast<double>(logits[i]) - static_cast<double>(*largest)) /
                            options.temperature);
  }
  if (options.top_p < 1.0) keep_most_probable(weights, options.top_p);
  double all = 0.0;
  for (const double weight : weights) all += weight;
  const Philox4x32 bits = philox(options.seed, static_cast<std::uint64_t>(position), 0);
  const double drawn = all * uniform_double(bits.v[0], bits.v[1]);
  double sum = 0.0;
  std::size_t last = 0;  // rounding may leave the sum of all below what was drawn
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0.0) continue;
    last = i;
    sum += weights[i];
    if (sum > drawn) break;
  }
  return static_cast<std::int32_t>(last);
}

std::int64_t context_of(Model& model) {
  const LanguageModel* const text = model.language_model();
  return text ? text->context() : model.input_shape().back();
}

void read_numbers(const Tensor& tensor, std::vector<float>& numbers) {
  Backend& backend = tensor.backend();
  Tensor wide = tensor;
  if (tensor.dtype() != DType::kFloat32) {
    wide = Tensor(backend, tensor.shape(), DType::kFloat32);
    backend.cast({.x = tensor, .y = wide});
  }
  numbers.resize(static_cast<std::size_t>(wide.elements()));
  backend.copy_to_host(wide, numbers.data());
}

TextContext::TextContext(Model& model, Backend& backend)
    : model_(model), text_(model.language_model()), backend_(backend) {}

std::vector<float> TextContext::after(std::span<const std::int32_t> tokens) {
  require(!tokens.empty(), "generate", "there are no tokens");
  const auto context = static_cast<std::size_t>(context_of(model_));
  for (const std::int32_t token : tokens) {
    if (window_.size() == context) {
      const std::size_t leave = std::max<std::size_t>(1, context / 2);
      window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(leave));
      cache_.clear();
    }
    window_.push_back(token);
  }
  tokens_ += std::ssize(tokens);
  std::vector<float> result;
  read_numbers(logits(), result);
  return result;
}

Tensor TextContext::logits() {
  Pass pass{backend_};
  const bool cached = text_ && text_->cached();
  const std::vector<std::int32_t> fresh(window_.begin() + (cached ? cache_.tokens() : 0),
                                        window_.end());
  const Tensor all = outputs_of(model_, fresh, cached ? &cache_ : nullptr, pass);
  const std::int64_t width = all.shape().back();
  const Tensor row = all.slice((std::ssize(fresh) - 1) * width, Shape{1, width});
  if (!text_) return row;
  const Tensor logits(backend_, Shape{1, text_->vocab()}, row.dtype());
  backend_.matmul({.a = row, .b = transposed(text_->head().operand()), .bias = {}, .c = logits});
  return logits;
}
Generated generate(Model& model, Backend& backend, const Tokenizer* tokenizer,
                   const TextBounds& bounds, std::span<const std::int32_t> prompt,
                   const GenerateOptions& options, const EachPiece& each) {
  check_options(options);
  if (!tokenizer && !options.stop.empty())
    fail(ExitCode::kUsage, "generate", {.key = "stop"},
         "is a text, and the model has no tokenizer; leave it out");
  // Outputs beyond the tokenizer's tokens have no text.
  const std::int64_t vocab = tokenizer ? tokenizer->vocab() : model.output_shape().back();
  std::vector<std::size_t> silent;
  for (std::int32_t token = 0; tokenizer && token < vocab; ++token) {
    if (tokenizer->bytes_of(token).empty()) silent.push_back(static_cast<std::size_t>(token));
  }
  if (prompt.empty())
    fail(ExitCode::kUsage, "generate", {.key = "prompt"},
         "is empty; needed: a text to go on with, be it a line break");
  for (const std::int32_t token : prompt) {
    if (token < 0 || token >= vocab)
      fail(ExitCode::kUsage, "generate", {.key = "prompt"}, "has token {}; allowed: 0 to {}", token,
           vocab - 1);
  }
  const auto begin = std::chrono::steady_clock::now();
  Generated result;
  TextContext text(model, backend);
  std::string bytes;  // not told yet
  const auto tell = [&](std::size_t end) {
    const std::string piece = repaired_utf8(std::string_view(bytes).substr(0, end));
    bytes.erase(0, end);
    result.text += piece;
    if (each && !piece.empty()) each(piece);
  };
  std::vector<float> logits = text.after(prompt);
  for (;;) {
    for (const std::size_t token : silent) logits[token] = -INFINITY;
    const std::int32_t token = choose_token(
        std::span(logits).first(static_cast<std::size_t>(vocab)), options, text.tokens());
    result.tokens.push_back(token);
    if (!options.ignore_eos &&
        std::find(bounds.ends.begin(), bounds.ends.end(), token) != bounds.ends.end())
      break;
    if (tokenizer) bytes += tokenizer->bytes_of(token);
    if (const std::size_t stop = first_stop(bytes, options.stop); stop != std::string::npos) {
      bytes.resize(stop);
      break;
    }
    const std::string_view sure(bytes.data(), bytes.size() - held_back(bytes, options.stop));
    tell(whole_characters(sure));
    if (std::ssize(result.tokens) == options.tokens) break;
    logits = text.after({&token, 1});
  }
  tell(bytes.size());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  result.tokens_per_second =
      static_cast<double>(result.tokens.size()) / std::max(seconds.count(), 1e-9);
  return result;
}

std::vector<std::int32_t> prompt_tokens(const Tokenizer& tokenizer, const TextBounds& bounds,
                                        std::string_view prompt) {
  std::vector<std::int32_t> tokens = bounds.begin;
  tokenizer.encode(prompt, tokens);
  return tokens;
}

std::size_t whole_characters(std::string_view text) {
  // Of a character's bytes the first says how many they are
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const std::size_t needed = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return needed > back ? text.size() - back : text.size();
  }
  return text.size();
}
TextScore score_tokens(Model& model, Backend& backend, std::span<const std::int32_t> tokens,
                       std::int64_t count) {
  const auto inputs = std::ssize(tokens) - 1, context = context_of(model);
  require(count >= 0 && count <= inputs, "score", "{} of {} tokens", count, inputs + 1);
  if (inputs > context)
    fail(ExitCode::kUsage, "score", "{} tokens stand before the last; allowed: {}, the context",
         inputs, context);
  TextScore score;
  if (count == 0) return score;
  LanguageModel* const text = model.language_model();
  Pass pass{backend};
  const Tensor all = outputs_of(model, {tokens.begin(), tokens.end() - 1}, nullptr, pass);
  const std::int64_t width = all.shape().back();
  const Tensor rows = all.slice((inputs - count) * width, Shape{count, width});
  std::vector<float> numbers;
  const auto take = [&](std::int64_t first, std::int64_t many, const Tensor& logits) {
    read_numbers(logits, numbers);
    const auto vocab = static_cast<std::size_t>(logits.shape().back());
    for (std::size_t row = 0; row < static_cast<std::size_t>(many); ++row)
      add_score(std::span(numbers).subspan(row * vocab, vocab),
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
  const auto checked = [&] {
    if (result.count < 1)
      fail(ExitCode::kUsage, "score", {.key = "continuation"},
           "has no token of its own behind the context; needed: a text, and one that does not "
           "become part of the context's last token");
    return result;
  };
  if (context.empty()) {
    if (from.empty())
      fail(ExitCode::kUsage, "score", {.key = "context"},
           "is empty, and the model has no token that begins or ends texts; give a context");
    tokenizer.encode(continuation, tokens);
    if (tokens.empty() || tokens.front() != from.front())
      tokens.insert(tokens.begin(), from.front());
    result.count = count(tokens) - 1;
    return checked();
  }
  tokens = begun(context.substr(0, unicode::without_blanks(context)));
  const std::vector<std::int32_t> whole = begun(std::string(context) + std::string(continuation));
  const std::int64_t given = std::min(count(tokens), count(whole));
  result.count = count(whole) - given;
  tokens.insert(tokens.end(), whole.begin() + given, whole.end());
  if (count(tokens) > result.count) return checked();
  // A context of blanks alone has no token before the first
  if (!from.empty())
    tokens.insert(tokens.begin(), from.front());
  else
    --result.count;
  return checked();
}

}  // namespace starling
