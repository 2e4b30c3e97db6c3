#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "layers/builtin.h"
#include "layers/functions.h"
#include "layers/language_model.h"
#include "layers/layer_norm.h"
#include "layers/linear.h"
#include "layers/models/transformer.h"

namespace starling {

namespace {

struct Gpt2Plan {
  std::int64_t layers = 12, heads = 12, width = 768, context = 1024, vocab = 50257, hidden = 3072,
               positions = 1024;
  double dropout = 0.0, eps = 1e-5;
};

/// x + c_proj(attention(ln_1 x)), then that + c_proj(gelu(c_fc(ln_2 x))).
class Gpt2Block : public Layer {
 public:
  explicit Gpt2Block(const Gpt2Plan& plan) : plan_(plan) { set_block(); }

 protected:
  Shape build(const Shape& input) override {
    const std::int64_t width = plan_.width;
    // The last matrix of a branch is scaled by depth, since all branches add to the residual
    // stream.
    const double end = kTransformerDeviation / std::sqrt(2.0 * static_cast<double>(plan_.layers));
    const auto conv1d = [](std::int64_t features, double deviation) {
      return std::make_unique<Linear>(features, Linear::Given{.weight = Init::normal(deviation),
                                                              .layout = TensorLayout::kTransposed});
    };
    ln_1_ = &add_child("ln_1", std::make_unique<LayerNorm>(plan_.eps), input);
    attn_ = &add_child("attn.c_attn", conv1d(3 * width, kTransformerDeviation), input);
    attn_proj_ = &add_child("attn.c_proj", conv1d(width, end), input);
    ln_2_ = &add_child("ln_2", std::make_unique<LayerNorm>(plan_.eps), input);
    fc_ = &add_child("mlp.c_fc", conv1d(plan_.hidden, kTransformerDeviation), input);
    proj_ = &add_child("mlp.c_proj", conv1d(width, end), fc_->output_shape());
    return input;
  }
  Variable compute(const Variable& x, Pass& pass) override {
    namespace f = functions;
    const auto projected = [&](Linear& linear, const Variable& y) {
      return f::dropout(linear.forward(y, pass), plan_.dropout, pass);
    };
    const Variable qkv = attn_->forward(ln_1_->forward(x, pass), pass);
    const Variable seen = f::packed_attention(qkv, plan_.heads, plan_.heads, {}, true, std::nullopt,
                                              plan_.dropout, pass);
    const Variable sum = f::add(x, projected(*attn_proj_, seen), pass);
    const Variable wide = fc_->forward_gelu(ln_2_->forward(sum, pass), pass);
    return f::add(sum, projected(*proj_, wide), pass);
  }

 private:
  Gpt2Plan plan_;
  LayerNorm *ln_1_ = nullptr, *ln_2_ = nullptr;
  Linear *attn_ = nullptr, *attn_proj_ = nullptr, *fc_ = nullptr, *proj_ = nullptr;
};

/// Radford et al. 2019, Language Models are Unsupervised Multitask Learners, with the names,
/// layouts and initial values of Hugging Face's GPT2Model.
class Gpt2 : public Layer {
 public:
  explicit Gpt2(const Gpt2Plan& plan) : plan_(plan) {}

 protected:
  Shape build(const Shape& input) override {
    const Init init = Init::normal(kTransformerDeviation);
    wte_ = &add_parameter("wte.weight", {plan_.vocab, plan_.width}, init);
    wpe_ = &add_parameter("wpe.weight", {plan_.positions, plan_.width}, init);
    const Shape hidden{input[0], plan_.width};
    for (std::int64_t i = 0; i < plan_.layers; ++i)
      blocks_.push_back(
          &add_child(fmt::format("h.{}", i), std::make_unique<Gpt2Block>(plan_), hidden));
    ln_f_ = &add_child("ln_f", std::make_unique<LayerNorm>(plan_.eps), hidden);
    return hidden;
  }
  Variable compute(const Variable& tokens, Pass& pass) override {
    namespace f = functions;
    const std::int64_t first = first_position(pass), count = tokens.shape()[1];
    const Variable places =
        pass.positions ? f::embedding(pass.positions, *wpe_, pass)
                       : f::slice(f::parameter(*wpe_, pass), 0, first, first + count, pass);
    Variable x = f::add(f::embedding(tokens.value(), *wte_, pass), places, pass);
    x = f::dropout(x, plan_.dropout, pass);
    for (Gpt2Block* block : blocks_) x = block->forward(x, pass);
    return ln_f_->forward(x, pass);
  }

 private:
  Gpt2Plan plan_;
  Parameter *wte_ = nullptr, *wpe_ = nullptr;
  std::vector<Gpt2Block*> blocks_;
  LayerNorm* ln_f_ = nullptr;
};

}  // namespace

void builtin::add_gpt2(ModelRegistry& registry) {
  registry.add(
      "gpt2",
      [](ConfigSection& section, const ModelOutputs& site) {
        Gpt2Plan plan;
        section.read("layers", plan.layers, kDepthRange, "blocks");
        section.read("heads", plan.heads, kSizeRange, "heads of attention; they divide the width");
        section.read("width", plan.width, kSizeRange, "numbers of a token");
        check_heads(section, plan.heads, plan.width);
        plan.hidden = section.integer("hidden", 4 * plan.width, kSizeRange,
                                      "features between the two products of a block's second "
                                      "half; default: four times the width");
        section.read("context", plan.context, kSizeRange, "the most tokens of a sequence");
        plan.positions = section.integer("positions", plan.context,
                                         Range::closed(static_cast<double>(plan.context), 1 << 24),
                                         "rows of the table of positions; default: context");
        plan.vocab = read_vocab(section, site, plan.vocab);
        section.read("eps", plan.eps, Range::positive(), "added to the variance in norms");
        section.read("dropout", plan.dropout, Range::half_open(0, 1),
                     "probability of dropout in embeddings, attention weights, and at the end of "
                     "both branches of a block");
        const bool tie = section.boolean("tie", true, "the head shares the table of tokens");
        return std::make_unique<LanguageModel>(
            LanguageModel::Settings{.vocab = plan.vocab,
                                    .context = plan.context,
                                    .tie = tie,
                                    .left_out = {".attn.bias", ".attn.masked_bias"},
                                    .cached = true},
            "transformer", std::make_unique<Gpt2>(plan));
      },
      "GPT-2, with the tensors of Hugging Face's GPT2LMHeadModel");
}

}  // namespace starling
