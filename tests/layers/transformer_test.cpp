#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "layers/functions.h"
#include "layers/language_model.h"
#include "layers/linear.h"
#include "tests/layers/support.h"

using namespace starling;
using namespace starling::testing;

namespace {

const std::string kGpt2 =
    R"({"type": "gpt2", "layers": 2, "heads": 2, "width": 8, "context": 9, "vocab": 11, "dropout": 0.1})";
const std::string kLlama =
    R"({"type": "llama", "layers": 2, "heads": 4, "kv_heads": 2, "width": 16, "hidden": 12, "context": 9, "vocab": 11})";
const std::string kVit =
    R"({"type": "vit", "layers": 2, "heads": 2, "width": 8, "mlp": 12, "image_size": 6, "patch_size": 3, "dropout": 0.1})";

/// Whole numbers below 11.
Tensor tokens_of(const Shape& shape, std::int32_t first = 0) {
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = (first + 7 * static_cast<std::int32_t>(i * i)) % 11;
  return labels_of(numbers).reshaped(shape);
}

std::unique_ptr<Model> ready(const std::string& json, const Shape& input) {
  auto model = model_from(json, input);
  model->allocate(cpu(), DType::kFloat64);
  std::uint64_t seed = 1;
  for (const Parameter* parameter : model->parameters()) {
    cpu().copy(noise_tensor(seed++, parameter->shape), parameter->value);
  }
  return model;
}

double deviation_of(const Model& model, const std::string& name) {
  for (const Parameter* parameter : model.parameters()) {
    if (parameter->name != name) continue;
    const std::vector<double> x = numbers_of(parameter->value);
    const double squares = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
    return std::sqrt(squares / static_cast<double>(x.size()));
  }
  FAIL("no parameter " << name);
  return 0.0;
}

}  // namespace

TEST_CASE("layers/transformers: gradients of adapters, with dropout of their own and without") {
  for (const double dropout : {0.0, 0.2}) {
    const auto model = model_from(kGpt2, {7});
    model->for_each([&](Layer& layer) {
      if (auto* const linear = dynamic_cast<Linear*>(&layer))
        linear->adapt({.rank = 3, .alpha = 2.0, .dropout = dropout});
    });
    model->collect();
    check_gradients(*model, 2, 0, false, 1, true, tokens_of({2, 7}));
  }
}

TEST_CASE("layers/transformers: gradients, with dropout") {
  check_gradients(*model_from(kGpt2, {7}), 2, 0, false, 1, true, tokens_of({2, 7}));
  check_gradients(*model_from(kLlama, {7}), 2, 0, false, 1, true, tokens_of({2, 7}));
  check_gradients(*model_from(kVit, {6, 6, 2}), 2);
}

TEST_CASE("layers/transformers: initial values are Hugging Face's and torchvision's") {
  const auto near = [](const Model& model, const std::string& name, double expected) {
    CAPTURE(name);
    CHECK(deviation_of(model, name) == doctest::Approx(expected).epsilon(0.03));
  };
  const auto gpt2 = model_from(R"({"type": "gpt2", "layers": 8, "heads": 4, "width": 128})", {64});
  gpt2->allocate(cpu(), DType::kFloat64);
  gpt2->initialise(1);
  for (const char* name : {"transformer.wte.weight", "transformer.wpe.weight",
                           "transformer.h.7.attn.c_attn.weight", "transformer.h.7.mlp.c_fc.weight"})
    near(*gpt2, name, 0.02);
  near(*gpt2, "transformer.h.3.attn.c_proj.weight", 0.02 / 4);
  near(*gpt2, "transformer.h.3.mlp.c_proj.weight", 0.02 / 4);
  CHECK(deviation_of(*gpt2, "transformer.h.3.mlp.c_fc.bias") == 0.0);
  CHECK(deviation_of(*gpt2, "transformer.ln_f.weight") == 1.0);

  const auto llama =
      model_from(R"({"type": "llama", "layers": 1, "heads": 2, "width": 96, "vocab": 200})", {64});
  llama->allocate(cpu(), DType::kFloat64);
  llama->initialise(1);
  for (const char* name : {"model.embed_tokens.weight", "model.layers.0.self_attn.o_proj.weight",
                           "model.layers.0.mlp.gate_proj.weight", "lm_head.weight"})
    near(*llama, name, 0.02);

  const auto vit = model_from(R"({"type": "vit_ti_16", "layers": 1})", {224, 224, 3});
  vit->allocate(cpu(), DType::kFloat64);
  vit->initialise(1);
  near(*vit, "conv_proj.weight", 1 / std::sqrt(768.0));
  near(*vit, "encoder.pos_embedding", 0.02);
  near(*vit, "encoder.layers.encoder_layer_0.mlp.0.weight", std::sqrt(2.0 / (192 + 768)));
  near(*vit, "encoder.layers.encoder_layer_0.self_attention.in_proj_weight",
       std::sqrt(2.0 / (192 + 576)));
  CHECK(deviation_of(*vit, "encoder.layers.encoder_layer_0.mlp.3.bias") < 1.3e-6);
  for (const char* name : {"class_token", "conv_proj.bias", "heads.head.weight"})
    CHECK(deviation_of(*vit, name) == 0.0);
}

TEST_CASE("layers/transformers: tokens behind those of a cache give what all together give") {
  for (const std::string& json : {kGpt2, kLlama}) {
    CAPTURE(json);
    const auto model = ready(json, {9});
    LanguageModel& text = *model->language_model();
    CHECK(text.vocab() == 11);
    CHECK(text.context() == 9);
    const Tensor tokens = tokens_of({1, 9});
    Pass pass{cpu()};
    const std::vector<double> whole = numbers_of(text.hidden(Variable(tokens), pass).value());
    KeyValueCache cache;
    for (const std::vector<std::int64_t>& parts :
         {std::vector<std::int64_t>{4, 1, 3, 1}, {9}, {1, 1, 1, 1, 1, 1, 1, 1, 1}, {2, 7}}) {
      std::vector<double> found;
      cache.clear();
      for (const std::int64_t count : parts) {
        const Tensor some = tokens.slice(cache.tokens(), {1, count});
        for (const double x : numbers_of(text.hidden(Variable(some), cache, pass).value()))
          found.push_back(x);
      }
      REQUIRE(found.size() == whole.size());
      CHECK(cache.tokens() == 9);
      double worst = 0.0;
      for (std::size_t i = 0; i < whole.size(); ++i)
        worst = std::max(worst, std::abs(found[i] - whole[i]));
      CHECK(worst <= 1e-12);
    }
    const auto full = [&] { text.hidden(Variable(tokens_of({1, 1})), cache, pass); };
    CHECK(contains(error_of(ExitCode::kUsage, full), "at most 0 tokens, the context, behind 9"));
    // Two sequences at once.
    const Tensor pair = tokens_of({2, 9});
    const std::vector<double> both = numbers_of(text.hidden(Variable(pair), pass).value());
    cache.clear();
    const Variable tail = [&] {
      const Variable x(pair);
      text.hidden(functions::slice(x, 1, 0, 8, pass), cache, pass);
      return text.hidden(functions::slice(x, 1, 8, 9, pass), cache, pass);
    }();
    const std::vector<double> last = numbers_of(tail.value());
    const std::size_t width = last.size() / 2;
    for (std::size_t i = 0; i < last.size(); ++i)
      CHECK(last[i] == doctest::Approx(both[(i / width * 9 + 8) * width + i % width]));
  }
}

TEST_CASE("layers/transformers: documents of a sequence are as each by itself, gradients too") {
  const Tensor positions =
      labels_of({0, 1, 2, 3, 0, 0, 1, 2, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8}).reshaped({2, 9});
  for (const std::string& json : {kGpt2, kLlama}) {
    const auto model = ready(json, {9});
    LanguageModel& text = *model->language_model();
    const Tensor tokens = tokens_of({2, 9}, 3), targets = tokens_of({2, 9}, 5);
    // Hidden states, and behind them all gradients
    const auto results = [&](Recompute recompute, bool packed) {
      std::vector<double> all;
      Tape tape(cpu());
      const auto add = [&](const Tensor& x, const Tensor& y, const Tensor& places, bool first) {
        Pass pass{.backend = cpu(),
                  .tape = &tape,
                  .recompute = recompute,
                  .overwrites = first,
                  .positions = places};
        const Variable hidden = text.hidden(Variable(x), pass);
        for (const double value : numbers_of(hidden.value())) all.push_back(value);
        const double share = static_cast<double>(y.elements()) / 18.0;
        tape.backward(functions::linear_cross_entropy(hidden, text.head(), y, share, pass), 1.0,
                      !first);
      };
      if (packed) {
        add(tokens, targets, positions, true);
      } else {
        std::int64_t first = 0;
        for (const std::int64_t length : {4, 1, 3, 1, 9}) {
          const Shape one{1, length};
          add(tokens.slice(first, one), targets.slice(first, one), {}, first == 0);
          first += length;
        }
      }
      for (const Parameter* parameter : model->parameters())
        for (const double value : numbers_of(parameter->grad)) all.push_back(value);
      return all;
    };
    const std::vector<double> alone = results(Recompute::kNone, false);
    for (const Recompute recompute : {Recompute::kNone, Recompute::kBlock}) {
      CAPTURE(json);
      const std::vector<double> packed = results(recompute, true);
      REQUIRE(packed.size() == alone.size());
      double worst = 0.0;
      for (std::size_t i = 0; i < alone.size(); ++i)
        worst = std::max(worst, std::abs(packed[i] - alone[i]));
      CHECK(worst <= 1e-12);
    }
  }
}

TEST_CASE("layers/transformers: a cache outgrows its memory, which stays right") {
  const auto model = ready(
      R"({"type": "llama", "layers": 1, "heads": 2, "width": 8, "hidden": 4, "context": 150, "vocab": 11})",
      {150});
  LanguageModel& text = *model->language_model();
  const Tensor tokens = tokens_of({1, 150});
  Pass pass{cpu()};
  const std::vector<double> whole = numbers_of(text.hidden(Variable(tokens), pass).value());
  KeyValueCache cache;
  double worst = 0.0;
  for (std::int64_t i = 0; i < 150; ++i) {
    const Variable one(tokens.slice(i, {1, 1}));
    const std::vector<double> found = numbers_of(text.hidden(one, cache, pass).value());
    for (std::size_t j = 0; j < found.size(); ++j)
      worst = std::max(worst, std::abs(found[j] - whole[static_cast<std::size_t>(i) * 8 + j]));
  }
  CHECK(worst <= 1e-12);
}

TEST_CASE("layers/transformers: what does not fit is told") {
  const auto told = [](const std::string& json, const Shape& input, const std::string& text) {
    CAPTURE(json);
    CHECK(contains(model_error(json, input), text));
  };
  told(R"({"type": "gpt2", "heads": 5})", {4}, "heads: 5 does not divide the width 768");
  told(R"({"type": "vit", "layers": 1, "heads": 5, "width": 8, "mlp": 8})", {224, 224, 3},
       "heads: 5 does not divide the width 8");
  told(R"({"type": "llama", "layers": 1, "heads": 4, "kv_heads": 3, "width": 8})", {4},
       "kv_heads: 3 does not divide heads 4");
  told(R"({"type": "llama", "layers": 1, "heads": 8, "width": 8})", {4}, "no pairs");
  told(kGpt2, {10},
       "context: is 9, but a sample has 10 tokens (data.sequence_length); allowed: as");
  told(kGpt2, {4, 4, 3}, "a sequence of tokens {T} is needed");
  told(R"({"type": "vit_ti_16"})", {32, 32, 3},
       "an image of 224×224 pixels, model.image_size, is needed");
  told(R"({"type": "vit_ti_16", "patch_size": 15})", {224, 224, 3},
       "patch_size: 15 does not divide image_size 224");
  const auto model = ready(kGpt2, {9});
  Pass pass{cpu()};
  const auto forward = [&](const Tensor& tokens) {
    return error_of(ExitCode::kUsage, [&] { model->forward(Variable(tokens), pass); });
  };
  CHECK(contains(forward(tokens_of({1, 10})), "a sequence of at most 9 tokens"));
  CHECK(contains(forward(labels_of({3, 11}).reshaped({1, 2})), "11"));
}
