#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
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

struct LlamaPlan {
  std::int64_t layers = 1, heads = 1, kv_heads = 1, width = 1, hidden = 1, context = 2048,
               vocab = 1;
  double rope_theta = 10000.0, eps = 1e-5;
};

/// x + o_proj(attention(norm x)), then that + down(silu(gate(norm x)) · up(norm x)).
class LlamaBlock : public Layer {
 public:
  explicit LlamaBlock(const LlamaPlan& plan) : plan_(plan) { set_block(); }

 protected:
  Shape build(const Shape& input) override {
    const std::int64_t kv_width = plan_.width / plan_.heads * plan_.kv_heads;
    const auto linear = [&](const char* name, std::int64_t features, const Shape& in) {
      return &add_child(name,
                        std::make_unique<Linear>(
                            features, Linear::Given{.weight = Init::normal(kTransformerDeviation),
                                                    .has_bias = false}),
                        in);
    };
    q_ = linear("self_attn.q_proj", plan_.width, input);
    k_ = linear("self_attn.k_proj", kv_width, input);
    v_ = linear("self_attn.v_proj", kv_width, input);
    o_ = linear("self_attn.o_proj", plan_.width, input);
    gate_ = linear("mlp.gate_proj", plan_.hidden, input);
    up_ = linear("mlp.up_proj", plan_.hidden, input);
    down_ = linear("mlp.down_proj", plan_.width, gate_->output_shape());
    norm_1_ = &add_child("input_layernorm", std::make_unique<RmsNorm>(plan_.eps), input);
    norm_2_ = &add_child("post_attention_layernorm", std::make_unique<RmsNorm>(plan_.eps), input);
    return input;
  }
  Variable compute(const Variable& x, Pass& pass) override {
    namespace f = functions;
    const Shape& in = x.shape();
    const std::int64_t depth = plan_.width / plan_.heads, first = first_position(pass);
    const Variable y = norm_1_->forward(x, pass);
    const auto heads = [&](Linear& linear, std::int64_t count) {
      return f::reshape(linear.forward(y, pass), {in[0], in[1], count, depth}, pass);
    };
    const auto turned = [&](const Variable& part) {
      if (!pass.positions) return f::rotary(part, 1, first, plan_.rope_theta, false, pass);
      const Tensor places = pass.positions.reshaped({in[0], in[1], 1});
      return f::rotary(part, places, plan_.rope_theta, false, pass);
    };
    const Variable q = turned(heads(*q_, plan_.heads)), k = turned(heads(*k_, plan_.kv_heads));
    const Variable seen = f::scaled_dot_product_attention(
        q, k, heads(*v_, plan_.kv_heads), {}, true, std::nullopt, 0.0, pass, f::HeadsAt::kThird);
    const Variable sum = f::add(x, o_->forward(f::reshape(seen, in, pass), pass), pass);
    const Variable z = norm_2_->forward(sum, pass);
    const Variable gate = f::silu(gate_->forward(z, pass), pass);
    const Variable wide = f::multiply(gate, up_->forward(z, pass), pass);
    return f::add(sum, down_->forward(wide, pass), pass);
  }

 private:
  LlamaPlan plan_;
  Linear *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *o_ = nullptr, *gate_ = nullptr,
         *up_ = nullptr, *down_ = nullptr;
  RmsNorm *norm_1_ = nullptr, *norm_2_ = nullptr;
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
    for (std::int64_t i = 0; i < plan_.layers; ++i)
      blocks_.push_back(
          &add_child(fmt::format("layers.{}", i), std::make_unique<LlamaBlock>(plan_), hidden));
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

LlamaPlan read_llama(ConfigSection& section, const ModelOutputs& site) {
  LlamaPlan plan;
  plan.layers = section.required_integer("layers", kDepthRange, "blocks", 4);
  plan.heads =
      section.required_integer("heads", kSizeRange, "heads of queries; they divide the width", 4);
  plan.kv_heads = section.integer("kv_heads", plan.heads, kSizeRange,
                                  "heads of keys and values, which divide heads; default: as many");
  plan.width = section.required_integer("width", kSizeRange, "numbers of a token", 256);
  // The authors' rule: two thirds of four times the width, rounded up to a multiple of 256.
  const std::int64_t usual = (8 * plan.width / 3 + 255) / 256 * 256;
  plan.hidden = section.integer("hidden", usual, kSizeRange,
                                "features between the two products of a block's second half; "
                                "default: 8/3 of the width, rounded up to a multiple of 256");
  section.read("context", plan.context, kSizeRange, "the most tokens of a sequence");
  plan.vocab = read_vocab(section, site, 32000);
  section.read("rope_theta", plan.rope_theta, Range::positive(),
               "base of the rotary embedding's angles");
  section.read("eps", plan.eps, Range::positive(), "added to the mean square in norms");
  check_heads(section, plan.heads, plan.width);
  if (plan.width / plan.heads % 2 != 0)
    section.error("heads", "{} of width {} have {} numbers each, which are no pairs", plan.heads,
                  plan.width, plan.width / plan.heads);
  if (plan.heads % plan.kv_heads != 0)
    section.error("kv_heads", "{} does not divide heads {}", plan.kv_heads, plan.heads);
  return plan;
}

}  // namespace

void builtin::add_llama(ModelRegistry& registry) {
  registry.add(
      "llama",
      [](ConfigSection& section, const ModelOutputs& site) {
        const LlamaPlan plan = read_llama(section, site);
        const bool tie = section.boolean("tie", false, "the head shares the table of tokens");
        return std::make_unique<LanguageModel>(
            LanguageModel::Settings{.vocab = plan.vocab,
                                    .context = plan.context,
                                    .tie = tie,
                                    .left_out = {".rotary_emb.inv_freq"},
                                    .cached = true},
            "model", std::make_unique<Llama>(plan));
      },
      "Llama, with the tensors of Hugging Face's LlamaForCausalLM");
}

}  // namespace starling
