#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "layers/builtin.h"
#include "layers/functions.h"
#include "layers/language_model.h"
#include "layers/layer_norm.h"
#include "layers/linear.h"
#include "layers/models/transformer.h"

namespace starling {

namespace {

/// What models of this kind differ in, under Hugging Face's names for them.
struct LlamaFamily {
  const char *name, *doc;
  bool qkv_bias = false;  ///< q, k and v have biases; else key `bias` gives all four products some
  bool bias_key = false;
  bool qk_norm = false;     ///< heads of queries and keys are normalised before they are turned
  bool window_key = false;  ///< keys `window` and `window_layers`
};
constexpr std::array kLlamaFamilies = {
    LlamaFamily{.name = "llama",
                .doc = "Llama, with the tensors of Hugging Face's LlamaForCausalLM",
                .bias_key = true},
    LlamaFamily{.name = "mistral",
                .doc = "Mistral: Llama with a sliding window; Hugging Face's MistralForCausalLM",
                .window_key = true},
    LlamaFamily{.name = "qwen2",
                .doc = "Qwen2: Llama with biases of queries, keys and values; Hugging Face's "
                       "Qwen2ForCausalLM",
                .qkv_bias = true,
                .window_key = true},
    LlamaFamily{.name = "qwen3",
                .doc = "Qwen3: Llama with norms of queries and keys; Hugging Face's "
                       "Qwen3ForCausalLM",
                .bias_key = true,
                .qk_norm = true,
                .window_key = true}};

struct LlamaPlan {
  std::int64_t layers = 1, heads = 1, kv_heads = 1, head_dim = 1, width = 1, hidden = 1,
               context = 2048, vocab = 1, window = 0;
  RotaryFrequencies rope;
  double eps = 1e-5;
  bool qkv_bias = false, o_bias = false, qk_norm = false;
  std::vector<std::int64_t> window_layers;  ///< empty: all
};

/// x + o_proj(attention(norm x)), then that + down(silu(gate(norm x)) · up(norm x)).
class LlamaBlock : public Layer {
 public:
  LlamaBlock(const LlamaPlan& plan, std::int64_t window) : plan_(plan), window_(window) {
    set_block();
  }

 protected:
  Shape build(const Shape& input) override {
    const std::int64_t depth = plan_.head_dim;
    const auto linear = [&](const char* name, std::int64_t features, const Shape& in,
                            bool bias = false) {
      return &add_child(name,
                        std::make_unique<Linear>(
                            features, Linear::Given{.weight = Init::normal(kTransformerDeviation),
                                                    .has_bias = bias}),
                        in);
    };
    q_ = linear("self_attn.q_proj", plan_.heads * depth, input, plan_.qkv_bias);
    k_ = linear("self_attn.k_proj", plan_.kv_heads * depth, input, plan_.qkv_bias);
    v_ = linear("self_attn.v_proj", plan_.kv_heads * depth, input, plan_.qkv_bias);
    o_ = linear("self_attn.o_proj", plan_.width, q_->output_shape(), plan_.o_bias);
    const auto norm = [&](const char* name, const Shape& in) {
      return &add_child(name, std::make_unique<RmsNorm>(plan_.eps), in);
    };
    if (plan_.qk_norm) {
      q_norm_ = norm("self_attn.q_norm", {input[0], plan_.heads, depth});
      k_norm_ = norm("self_attn.k_norm", {input[0], plan_.kv_heads, depth});
    }
    gate_ = linear("mlp.gate_proj", plan_.hidden, input);
    up_ = linear("mlp.up_proj", plan_.hidden, input);
    down_ = linear("mlp.down_proj", plan_.width, gate_->output_shape());
    norm_1_ = norm("input_layernorm", input);
    norm_2_ = norm("post_attention_layernorm", input);
    return input;
  }
  Variable compute(const Variable& x, Pass& pass) override {
    namespace f = functions;
    const Shape& in = x.shape();
    const std::int64_t depth = plan_.head_dim, first = first_position(pass);
    const Variable y = norm_1_->forward(x, pass);
    const auto heads = [&](Linear& linear, std::int64_t count) {
      return f::reshape(linear.forward(y, pass), {in[0], in[1], count, depth}, pass);
    };
    const auto turned = [&](const Variable& projected, RmsNorm* norm) {
      const Variable part = norm ? norm->forward(projected, pass) : projected;
      if (!pass.positions) return f::rotary(part, 1, first, plan_.rope, false, pass);
      const Tensor places = pass.positions.reshaped({in[0], in[1], 1});
      return f::rotary(part, places, plan_.rope, false, pass);
    };
    const Variable q = turned(heads(*q_, plan_.heads), q_norm_),
                   k = turned(heads(*k_, plan_.kv_heads), k_norm_);
    const Variable seen =
        f::scaled_dot_product_attention(q, k, heads(*v_, plan_.kv_heads), {}, {true, window_},
                                        std::nullopt, 0.0, pass, f::HeadsAt::kThird);
    const Variable all = f::reshape(seen, {in[0], in[1], plan_.heads * depth}, pass);
    const Variable sum = f::add(x, o_->forward(all, pass), pass);
    const Variable z = norm_2_->forward(sum, pass);
    const Variable gate = f::silu(gate_->forward(z, pass), pass);
    const Variable wide = f::multiply(gate, up_->forward(z, pass), pass);
    return f::add(sum, down_->forward(wide, pass), pass);
  }

 private:
  LlamaPlan plan_;
  std::int64_t window_;
  Linear *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *o_ = nullptr, *gate_ = nullptr,
         *up_ = nullptr, *down_ = nullptr;
  RmsNorm *norm_1_ = nullptr, *norm_2_ = nullptr, *q_norm_ = nullptr, *k_norm_ = nullptr;
};

/// Touvron et al. 2023 (arXiv 2302.13971), with the names and initial values of Hugging Face's
/// LlamaModel.
class Llama : public Layer {
 public:
  explicit Llama(const LlamaPlan& plan) : plan_(plan) {}

 protected:
  Shape build(const Shape& input) override {
    table_ = &add_parameter("embed_tokens.weight", {plan_.vocab, plan_.width},
                            Init::normal(kTransformerDeviation));
    const Shape hidden{input[0], plan_.width};
    const std::vector<std::int64_t>& few = plan_.window_layers;
    for (std::int64_t i = 0; i < plan_.layers; ++i) {
      const bool windowed = few.empty() || std::find(few.begin(), few.end(), i) != few.end();
      blocks_.push_back(&add_child(fmt::format("layers.{}", i),
                                   std::make_unique<LlamaBlock>(plan_, windowed ? plan_.window : 0),
                                   hidden));
    }
    norm_ = &add_child("norm", std::make_unique<RmsNorm>(plan_.eps), hidden);
    return hidden;
  }
  Variable compute(const Variable& tokens, Pass& pass) override {
    Variable x = functions::embedding(tokens.value(), *table_, pass);
    for (LlamaBlock* block : blocks_) x = block->forward(x, pass);
    return norm_->forward(x, pass);
  }

 private:
  LlamaPlan plan_;
  Parameter* table_ = nullptr;
  std::vector<LlamaBlock*> blocks_;
  RmsNorm* norm_ = nullptr;
};

RotaryFrequencies read_rope(ConfigSection& section) {
  RotaryFrequencies rope;
  section.read("rope_theta", rope.base, Range::positive(), "base of the rotary embedding's angles");
  std::optional<ConfigSection> scaling = section.optional_section(
      "rope_scaling", "slows the rotary embedding down, for more positions than it began with");
  if (!scaling) return rope;
  const std::string type = scaling->choice(
      "type", "linear", {"linear", "llama3"},
      "linear: all angles are divided by `factor`; llama3: those of pairs that turn slowly");
  scaling->read("factor", rope.factor, Range::at_least(1.0), "what angles are divided by");
  const auto of_llama3 = [&](const char* key, double& value, const char* doc) {
    scaling->read(key, value, Range::positive(), doc);
    if (type != "llama3" && scaling->changed(key))
      scaling->error(key, "is {}, and type is {}, which has none; leave it out", value, type);
  };
  of_llama3(
      "low_freq_factor", rope.low,
      "of llama3: pairs with fewer turns in original_context are divided by factor, such as 1");
  of_llama3(
      "high_freq_factor", rope.high,
      "of llama3: pairs with more turns are left as they are, such as 4; between the two it is "
      "interpolated");
  of_llama3("original_context", rope.context = 8192.0,
            "of llama3: the context that the model was first trained with, such as 8192");
  if (rope.high <= rope.low)
    scaling->error("high_freq_factor", "is {}, low_freq_factor {}; needed: more", rope.high,
                   rope.low);
  if (type != "llama3") rope.context = 0.0;
  scaling->finish();
  return rope;
}

LlamaPlan read_llama(const LlamaFamily& family, ConfigSection& section, const ModelOutputs& site) {
  LlamaPlan plan;
  plan.layers = section.required_integer("layers", kDepthRange, "blocks", 4);
  plan.heads = section.required_integer(
      "heads", kSizeRange, "heads of queries; they divide the width, unless head_dim is given", 4);
  plan.kv_heads = section.integer("kv_heads", plan.heads, kSizeRange,
                                  "heads of keys and values, which divide heads; default: as many");
  plan.width = section.required_integer("width", kSizeRange, "numbers of a token", 256);
  if (!section.has("head_dim")) check_heads(section, plan.heads, plan.width);
  plan.head_dim = section.integer("head_dim", plan.width / plan.heads, kSizeRange,
                                  "numbers of a head; default: the width divided by heads");
  // The authors' rule: two thirds of four times the width, rounded up to a multiple of 256.
  const std::int64_t usual = (8 * plan.width / 3 + 255) / 256 * 256;
  plan.hidden = section.integer("hidden", usual, kSizeRange,
                                "features between the two products of a block's second half; "
                                "default: 8/3 of the width, rounded up to a multiple of 256");
  section.read("context", plan.context, kSizeRange, "the most tokens of a sequence");
  plan.vocab = read_vocab(section, site, 32000);
  plan.rope = read_rope(section);
  section.read("eps", plan.eps, Range::positive(), "added to the mean square in norms");
  if (family.bias_key) {
    plan.o_bias =
        section.boolean("bias", false, "the products of attention (q, k, v and o) have biases");
  }
  plan.qkv_bias = plan.o_bias || family.qkv_bias;
  plan.qk_norm = family.qk_norm;
  if (family.window_key) {
    section.read(
        "window", plan.window, Range::closed(0, 1 << 30),
        "a token attends to itself and the window - 1 tokens before it: with 3 token 10 sees 8, 9 "
        "and 10; 0: no limit");
    plan.window_layers = section.integers("window_layers", {},
                                          Range::closed(0, static_cast<double>(plan.layers - 1)),
                                          "blocks with the window, by number from 0; empty: all");
  }
  if (plan.head_dim % 2 != 0)
    section.error("heads", "{} of width {} have {} numbers each, which are no pairs", plan.heads,
                  plan.width, plan.head_dim);
  if (plan.heads % plan.kv_heads != 0)
    section.error("kv_heads", "{} does not divide heads {}", plan.kv_heads, plan.heads);
  return plan;
}

}  // namespace

void builtin::add_llama(ModelRegistry& registry) {
  for (const LlamaFamily& family : kLlamaFamilies) {
    registry.add(
        family.name,
        [&family](ConfigSection& section, const ModelOutputs& site) {
          const LlamaPlan plan = read_llama(family, section, site);
          const bool tie = section.boolean("tie", false, "the head shares the table of tokens");
          return std::make_unique<LanguageModel>(
              LanguageModel::Settings{.vocab = plan.vocab,
                                      .context = plan.context,
                                      .tie = tie,
                                      .left_out = {".rotary_emb.inv_freq"},
                                      .cached = true},
              "model", std::make_unique<Llama>(plan));
        },
        family.doc);
  }
}

}  // namespace starling
