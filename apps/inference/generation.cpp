#include "apps/inference/generation.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/error.h"
#include "core/operations/pointwise.h"
#include "core/operations/products.h"
#include "core/philox.h"

namespace starling {

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
}

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

}  // namespace

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

std::vector<float> TextContext::after(std::span<const std::int32_t> tokens) {
  require(!tokens.empty(), "generate", "there are no tokens");
  const auto context = static_cast<std::size_t>(model_.context());
  for (const std::int32_t token : tokens) {
    if (window_.size() == context) {
      const std::size_t leave = std::max<std::size_t>(1, context / 2);
      window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(leave));
      cache_.clear();
    }
    window_.push_back(token);
  }
  tokens_ += static_cast<std::int64_t>(tokens.size());
  const std::span<const std::int32_t> fresh =
      std::span(window_).subspan(static_cast<std::size_t>(cache_.tokens()));
  const auto count = static_cast<std::int64_t>(fresh.size());
  const Tensor input(backend_, Shape{1, count}, DType::kInt32);
  backend_.copy_from_host(fresh.data(), input);
  Pass pass{backend_};
  const Tensor hidden = model_.hidden(Variable(input), cache_, pass).value();
  const std::int64_t width = hidden.shape().back(), vocab = model_.vocab();
  const Tensor logits(backend_, Shape{1, vocab}, hidden.dtype());
  backend_.matmul({.a = hidden.slice((count - 1) * width, Shape{1, width}),
                   .b = transposed(model_.head().operand()),
                   .bias = {},
                   .c = logits});
  Tensor numbers = logits;
  if (logits.dtype() != DType::kFloat32) {
    numbers = Tensor(backend_, logits.shape(), DType::kFloat32);
    backend_.cast({.x = logits, .y = numbers});
  }
  std::vector<float> result(static_cast<std::size_t>(vocab));
  backend_.copy_to_host(numbers, result.data());
  return result;
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

}  // namespace starling
