// How a language model goes on with a text: which token is drawn, and what it sees of a long text.
#include "apps/inference/generation.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "layers/functions.h"
#include "layers/language_model.h"
#include "layers/layer.h"
#include "tests/support/errors.h"

namespace starling {
namespace {

using test::contains;
using test::error_of;
using test::fails;

constexpr std::int64_t kWords = 13;

std::unique_ptr<Model> tiny_gpt2(std::int64_t context) {
  register_builtin_layers();
  register_builtin_models();
  const nlohmann::json keys{{"type", "gpt2"}, {"layers", 2},        {"heads", 2},
                            {"width", 8},     {"context", context}, {"vocab", kWords}};
  ConfigSection section(keys, "test");
  return make_model(section, Shape{context}, kWords);
}

/// What tokens come to without a cache: the last row of the logits of all of them at once.
std::vector<double> last_logits(Model& model, Backend& backend,
                                const std::vector<std::int32_t>& tokens) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  const Tensor input(backend, Shape{1, count}, DType::kInt32);
  backend.copy_from_host(tokens.data(), input);
  Pass pass{backend};
  const Tensor logits = model.forward(Variable(input), pass).value();
  const double* row = logits.data<double>() + (count - 1) * kWords;
  return {row, row + kWords};
}

/// The rule of a full context, one token after another.
void grow(std::vector<std::int32_t>& window, std::int32_t token, std::int64_t context) {
  if (std::ssize(window) == context)
    window.erase(window.begin(), window.begin() + std::max<std::int64_t>(1, context / 2));
  window.push_back(token);
}

void check_close(const std::vector<float>& found, const std::vector<double>& wanted) {
  REQUIRE(found.size() == wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    CHECK(static_cast<double>(found[i]) == doctest::Approx(wanted[i]).epsilon(1e-6));
}

void check_growth(std::int64_t context) {
  CAPTURE(context);
  CpuBackend backend(1);
  const auto model = tiny_gpt2(context);
  model->allocate(backend, DType::kFloat64);
  model->initialise(3);
  TextContext text(*model, backend);
  std::vector<std::int32_t> window, all{4, 1, 9};
  for (const std::int32_t token : all) grow(window, token, context);
  std::vector<float> logits = text.after(all);
  for (int step = 0; step < 20; ++step) {
    CAPTURE(step);
    const std::vector<double> wanted = last_logits(*model, backend, window);
    check_close(logits, wanted);
    const std::int32_t token = choose_token(logits, {.temperature = 0.0}, text.tokens());
    CHECK(token == std::max_element(wanted.begin(), wanted.end()) - wanted.begin());
    const auto drawn = static_cast<std::int32_t>((token + step) % kWords);
    all.push_back(drawn);
    grow(window, drawn, context);
    logits = text.after({&drawn, 1});
  }
  // A prompt of as many tokens is as if they had come one by one
  TextContext at_once(*model, backend);
  check_close(at_once.after(all), last_logits(*model, backend, window));
  CHECK(at_once.tokens() == static_cast<std::int64_t>(all.size()));
  model->drop_memory();
}

TEST_CASE("generation: a text that grows is what its window is at once, far beyond the context") {
  for (const std::int64_t context : {6, 1}) check_growth(context);
}

TEST_CASE("generation: which tokens are drawn") {
  const std::vector<float> logits{1.0f, 3.0f, 2.0f, 3.0f, -1.0f, 2.0f};
  const auto counts = [&](const GenerateOptions& options) {
    std::map<std::int32_t, double> result;
    for (std::int64_t position = 0; position < 4000; ++position)
      result[choose_token(logits, options, position)] += 1.0 / 4000;
    return result;
  };
  CHECK(choose_token(logits, {.temperature = 0.0}, 5) == 1);  // the first of equal ones
  std::map<std::int32_t, double> all = counts({});
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  for (std::size_t i = 0; i < logits.size(); ++i)
    CHECK(std::abs(all[static_cast<std::int32_t>(i)] -
                   std::exp(static_cast<double>(logits[i])) / sum) < 0.025);
  // Equal ones of the k-th stay, as Hugging Face's warper has it
  CHECK(counts({.top_k = 1}).size() == 2);
  CHECK(counts({.top_k = 3}).size() == 4);
  CHECK(counts({.top_k = 100}).size() == all.size());
  // 1 and 3 have 0.37 each, 2 and 5 have 0.136 each
  CHECK(counts({.top_p = 0.3}).size() == 1);
  CHECK(counts({.top_p = 0.5}).size() == 2);
  const auto three = counts({.top_p = 0.8});
  CHECK(three.size() == 3);
  CHECK(three.count(2) == 1);  // the lower number of equal ones
  // Of four that top_k leaves the first has a larger share than of all
  CHECK(counts({.top_k = 2, .top_p = 0.45}).size() == 1);
  // A high temperature makes all alike
  for (const auto& [token, share] : counts({.temperature = 100.0}))
    CHECK(std::abs(share - 1.0 / 6) < 0.025);
  // By seed and position
  const auto text_of = [&](std::uint64_t seed) {
    std::vector<std::int32_t> tokens;
    for (std::int64_t position = 0; position < 50; ++position)
      tokens.push_back(choose_token(logits, {.seed = seed}, position));
    return tokens;
  };
  CHECK(text_of(1) == text_of(1));
  CHECK(text_of(1) != text_of(2));
  const std::vector<float> wrong{1.0f, std::numeric_limits<float>::quiet_NaN()};
  CHECK(fails(ExitCode::kUsage, "token 7 are no finite numbers",
              [&] { choose_token(wrong, {}, 7); }));
}

/// The next byte is the sum of a window's bytes: not what others would do, and of one length alone.
class SumOfBytes final : public Layer {
 protected:
  Shape build(const Shape& input) override {
    add_parameter("nothing", {1}, Init::constant(0.0));
    return {input[0], 256};
  }
  Variable compute(const Variable& tokens, Pass& pass) override {
    const std::int64_t count = tokens.shape()[1];
    if (count != input_shape()[0]) bad_shape(tokens.shape(), "its own length");
    const Tensor logits(pass.backend, {tokens.shape()[0], count, 256}, DType::kFloat32);
    pass.backend.fill(logits, 0.0);
    std::int32_t sum = 0;
    for (std::int64_t t = 0; t < count; ++t) {
      sum += tokens.value().data<std::int32_t>()[t];
      logits.data<float>()[t * 256 + sum % 256] = 9.0F;
    }
    return Variable(logits);
  }
};

TEST_CASE("generation: any causal model goes on with a text, ends it, and stops") {
  CpuBackend backend(1);
  Model model(std::make_unique<SumOfBytes>(), Shape{4});
  model.allocate(backend, DType::kFloat32);
  const auto bytes = Tokenizer::bytes();
  std::string pieces;
  const auto go = [&](const std::vector<std::int32_t>& prompt, GenerateOptions options,
                      const TextBounds& bounds = {}) {
    pieces.clear();
    options.temperature = 0.0;
    const Generated made = generate(model, backend, bytes.get(), bounds, prompt, options,
                                    [&](std::string_view piece) { pieces += piece; });
    CHECK(made.text == pieces);
    return made;
  };
  // By hand: a full window of 4 loses its first 2
  std::vector<std::int32_t> window{1, 2}, wanted;
  for (int i = 0; i < 9; ++i) {
    const std::int32_t next = std::accumulate(window.begin(), window.end(), 0) % 256;
    wanted.push_back(next);
    grow(window, next, 4);
  }
  const std::vector<std::int32_t> prompt{1, 2};
  CHECK(go(prompt, {.tokens = 9}).tokens == wanted);
  // The last two are '*' and 'K'
  CHECK(std::vector<std::int32_t>(wanted.begin(), wanted.begin() + 6) ==
        std::vector<std::int32_t>{3, 6, 12, 21, 42, 75});
  const std::string before("\x03\x06\x0c\x15", 4);
  CHECK(go(prompt, {.tokens = 9, .stop = {"K"}}).text == before + "*");
  CHECK(go(prompt, {.tokens = 9, .stop = {"K"}}).tokens.size() == 6);
  CHECK(go(prompt, {.tokens = 9, .stop = {"*K", "K"}}).text == before);
  CHECK(go(prompt, {.tokens = 6, .stop = {"*Kx", "*x", "Kx"}}).text == before + "*K");
  CHECK(go(prompt, {.tokens = 6, .stop = {"\x01\x02"}}).tokens.size() == 6);  // the prompt has it
  // An end is the last token, and no text
  const TextBounds bounds{.begin = {1}, .ends = {200, 42}};
  CHECK(go(prompt, {.tokens = 9}, bounds).tokens.size() == 5);
  CHECK(go(prompt, {.tokens = 9}, bounds).text == before);
  CHECK(go(prompt, {.tokens = 9, .ignore_eos = true}, bounds).tokens == wanted);
  CHECK(prompt_tokens(*bytes, bounds, "ab") == std::vector<std::int32_t>{1, 'a', 'b'});
  CHECK(prompt_tokens(*bytes, bounds, "") == std::vector<std::int32_t>{1});
  CHECK(fails(ExitCode::kUsage, "stop: is ''", [&] { go(prompt, {.stop = {""}}); }));
  CHECK(fails(ExitCode::kUsage, "stop: is a text, and the model has no tokenizer",
              [&] { generate(model, backend, nullptr, {}, prompt, {.stop = {"a"}}, {}); }));
  model.drop_memory();
}

/// A body that knows nothing of caches: what a window's vectors sum up to.
class SumOfVectors final : public Layer {
 protected:
  Shape build(const Shape& input) override {
    table_ = &add_parameter("wte.weight", {kWords, 8}, Init::normal(1.0));
    return {input[0], 8};
  }
  Variable compute(const Variable& tokens, Pass& pass) override {
    return functions::cumsum(functions::embedding(tokens.value(), *table_, pass), 1, pass);
  }

 private:
  Parameter* table_ = nullptr;
};

TEST_CASE("generation: a language model without a cache sees its whole window") {
  CpuBackend backend(1);
  Model model(std::make_unique<LanguageModel>(
                  LanguageModel::Settings{.vocab = kWords, .context = 6, .tie = true}, "body",
                  std::make_unique<SumOfVectors>()),
              Shape{6});
  model.allocate(backend, DType::kFloat64);
  model.initialise(3);
  TextContext text(model, backend);
  std::vector<std::int32_t> window;
  for (std::int32_t step = 0; step < 20; ++step) {
    const std::int32_t token = step * step % static_cast<std::int32_t>(kWords);
    grow(window, token, 6);
    check_close(text.after({&token, 1}), last_logits(model, backend, window));
  }
  model.drop_memory();
}

/// Of 256 numbers it has tokens for the even ones.
class Gaps final : public Tokenizer {
 public:
  std::int64_t vocab() const override { return 100; }
  void encode(std::string_view, std::vector<std::int32_t>&) const override {}
  void encode_plain(std::string_view, std::vector<std::int32_t>&) const override {}
  void encode(std::string_view, const Loop&, const Sink&) const override {}
  std::string_view bytes_of(std::int32_t token) const override { return token % 2 == 0 ? "x" : ""; }
  std::string text() const override { return ""; }
  std::string huggingface() const override { return ""; }
};

TEST_CASE("generation: tokens that a tokenizer lacks are never drawn") {
  CpuBackend backend(1);
  Model model(std::make_unique<SumOfBytes>(), Shape{4});
  model.allocate(backend, DType::kFloat32);
  const Gaps gaps;
  const std::vector<std::int32_t> prompt{98, 97, 50};
  const Generated made =
      generate(model, backend, &gaps, {}, prompt, {.tokens = 300, .temperature = 100.0}, {});
  CHECK(made.tokens.size() == 300);
  for (const std::int32_t token : made.tokens) CHECK((token % 2 == 0 && token < 100));
  model.drop_memory();
}

TEST_CASE("generation: options that are not allowed, and characters that are not whole") {
  const auto refused = [](const GenerateOptions& options) {
    return error_of(ExitCode::kUsage, [&] { check_options(options); });
  };
  CHECK(contains(refused({.tokens = 0}), "tokens: is 0; allowed: >= 1"));
  CHECK(contains(refused({.temperature = -0.5}), "temperature: is -0.5; allowed: >= 0"));
  CHECK(contains(refused({.temperature = std::nan("")}), "temperature: is nan"));
  CHECK(contains(refused({.top_k = -1}), "top-k: is -1"));
  CHECK(contains(refused({.top_p = 0.0}), "top-p: is 0; allowed: above 0"));
  CHECK(contains(refused({.top_p = 1.5}), "top-p: is 1.5"));
  const std::string text = "a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x90\xA6";  // a, ä, €, a bird
  std::vector<std::size_t> whole;
  for (std::size_t end = 0; end <= text.size(); ++end)
    whole.push_back(whole_characters(std::string_view(text).substr(0, end)));
  CHECK(whole == std::vector<std::size_t>{0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10});
  CHECK(whole_characters("\x80\x80\x80\x80") == 4);
}

}  // namespace
}  // namespace starling
