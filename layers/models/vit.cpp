#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "layers/builtin.h"
#include "layers/conv2d.h"
#include "layers/functions.h"
#include "layers/layer_norm.h"
#include "layers/linear.h"
#include "layers/models/transformer.h"
#include "layers/multi_head_attention.h"

namespace starling {

namespace {

struct VitPlan {
  std::int64_t patch_size = 16, image_size = 224, layers = 1, heads = 1, width = 1, mlp = 4;
  double dropout = 0.0;
};

std::unique_ptr<LayerNorm> vit_norm() { return std::make_unique<LayerNorm>(1e-6); }

/// x + attention(ln_1 x), then that + mlp(ln_2 x).
class VitBlock : public Layer {
 public:
  explicit VitBlock(const VitPlan& plan) : plan_(plan) { set_block(); }

 protected:
  Shape build(const Shape& input) override {
    const auto linear = [&](std::int64_t features) {
      const double limit = std::sqrt(6.0 / static_cast<double>(plan_.width + plan_.mlp));
      return std::make_unique<Linear>(
          features, Linear::Given{.weight = Init::uniform(limit), .bias = Init::normal(1e-6)});
    };
    ln_1_ = &add_child("ln_1", vit_norm(), input);
    attention_ = &add_child(
        "self_attention",
        std::make_unique<MultiHeadAttention>(plan_.heads, plan_.heads, false, 0.0, true), input);
    ln_2_ = &add_child("ln_2", vit_norm(), input);
    wide_ = &add_child("mlp.0", linear(plan_.mlp), input);
    narrow_ = &add_child("mlp.3", linear(plan_.width), wide_->output_shape());
    return input;
  }
  Variable compute(const Variable& x, Pass& pass) override {
    namespace f = functions;
    const auto dropped = [&](const Variable& y) { return f::dropout(y, plan_.dropout, pass); };
    const Variable seen = attention_->forward(ln_1_->forward(x, pass), pass);
    const Variable sum = f::add(x, dropped(seen), pass);
    const Variable wide = f::gelu(wide_->forward(ln_2_->forward(sum, pass), pass), pass);
    return f::add(sum, dropped(narrow_->forward(dropped(wide), pass)), pass);
  }

 private:
  VitPlan plan_;
  LayerNorm *ln_1_ = nullptr, *ln_2_ = nullptr;
  MultiHeadAttention* attention_ = nullptr;
  Linear *wide_ = nullptr, *narrow_ = nullptr;
};

/// {T, width} → {width}: adds positions, applies the blocks, and returns the norm of the first
/// token, the class token.
class VitEncoder : public Layer {
 public:
  explicit VitEncoder(const VitPlan& plan) : plan_(plan) {}

 protected:
  Shape build(const Shape& input) override {
    positions_ = &add_parameter("pos_embedding", input.with_batch(1), Init::normal(0.02));
    for (std::int64_t i = 0; i < plan_.layers; ++i)
      blocks_.push_back(&add_child(fmt::format("layers.encoder_layer_{}", i),
                                   std::make_unique<VitBlock>(plan_), input));
    ln_ = &add_child("ln", vit_norm(), Shape{plan_.width});
    return {plan_.width};
  }
  Variable compute(const Variable& tokens, Pass& pass) override {
    namespace f = functions;
    Variable x = f::add(tokens, f::parameter(*positions_, pass), pass);
    x = f::dropout(x, plan_.dropout, pass);
    for (VitBlock* block : blocks_) x = block->forward(x, pass);
    return ln_->forward(f::squeeze(f::slice(x, 1, 0, 1, pass), 1, pass), pass);
  }

 private:
  VitPlan plan_;
  Parameter* positions_ = nullptr;
  std::vector<VitBlock*> blocks_;
  LayerNorm* ln_ = nullptr;
};

/// Dosovitskiy et al. 2020 (arXiv 2010.11929), with the names and initial values of torchvision's
/// VisionTransformer: a token for each patch, preceded by the class token, whose final state is the
/// input of a linear layer.
class VisionTransformer : public Layer {
 public:
  VisionTransformer(const VitPlan& plan, std::int64_t classes) : plan_(plan), classes_(classes) {}

 protected:
  Shape build(const Shape& input) override {
    const std::int64_t side = plan_.image_size, patch = plan_.patch_size;
    if (input.rank() != 3 || input[0] != side || input[1] != side)
      bad_shape(input, fmt::format("an image of {0}×{0} pixels, model.image_size,", side));
    class_token_ = &add_parameter("class_token", {1, 1, plan_.width}, Init::constant(0.0));
    patches_ = &add_child("conv_proj",
                          std::make_unique<Conv2d>(Conv2dOptions{
                              .out_channels = plan_.width,
                              .window = {.kernel = {patch, patch}, .stride = {patch, patch}},
                              .init = Conv2dOptions::WeightInit::kNormalFanIn,
                              .zero_bias = true}),
                          input);
    const std::int64_t tokens = (side / patch) * (side / patch) + 1;
    encoder_ =
        &add_child("encoder", std::make_unique<VitEncoder>(plan_), Shape{tokens, plan_.width});
    head_ = &add_child("heads.head",
                       std::make_unique<Linear>(classes_, Linear::Given{Init::constant(0.0)}),
                       encoder_->output_shape());
    return head_->output_shape();
  }
  Variable compute(const Variable& image, Pass& pass) override {
    namespace f = functions;
    const std::int64_t n = image.shape()[0], width = plan_.width;
    const Variable patches = patches_->forward(image, pass);
    const std::int64_t count = patches.shape()[1] * patches.shape()[2];
    if (count + 1 != encoder_->input_shape()[0])
      bad_shape(image.shape(), fmt::format("images of {0}×{0} pixels", plan_.image_size));
    const Variable first = f::expand(f::parameter(*class_token_, pass), {n, 1, width}, pass);
    const Variable tokens =
        f::concat({first, f::reshape(patches, {n, count, width}, pass)}, 1, pass);
    return head_->forward(encoder_->forward(tokens, pass), pass);
  }

 private:
  VitPlan plan_;
  std::int64_t classes_;
  Parameter* class_token_ = nullptr;
  Conv2d* patches_ = nullptr;
  VitEncoder* encoder_ = nullptr;
  Linear* head_ = nullptr;
};

/// `usual`: defaults of layers, heads, width and mlp; if empty, the config must give them.
std::unique_ptr<Layer> read_vit(ConfigSection& section, const ModelOutputs& site,
                                const std::optional<VitPlan>& usual) {
  VitPlan plan = usual.value_or(VitPlan());
  const auto size = [&](const char* key, std::int64_t& value, std::int64_t sample, const char* doc,
                        const Range& range = kSizeRange) {
    value = usual ? section.integer(key, value, range, doc)
                  : section.required_integer(key, range, doc, sample);
  };
  section.read("patch_size", plan.patch_size, kSizeRange, "pixels of a patch's side");
  section.read("image_size", plan.image_size, kSizeRange,
               "side of an image in pixels, a multiple of patch_size");
  size("layers", plan.layers, 6, "blocks", kDepthRange);
  size("heads", plan.heads, 4, "heads of attention; they divide the width");
  size("width", plan.width, 256, "numbers of a token");
  size("mlp", plan.mlp, 1024, "features between the two products of a block's second half");
  section.read("dropout", plan.dropout, Range::half_open(0, 1),
               "probability of dropout in tokens with their positions, and after attention and "
               "both products");
  check_heads(section, plan.heads, plan.width);
  if (plan.image_size % plan.patch_size != 0)
    section.error("patch_size", "{} does not divide image_size {}", plan.patch_size,
                  plan.image_size);
  return std::make_unique<VisionTransformer>(plan, site.num_classes);
}

}  // namespace

void builtin::add_vit(ModelRegistry& registry) {
  const auto add = [&](const char* name, const std::optional<VitPlan>& usual, const char* doc) {
    registry.add(
        name,
        [usual](ConfigSection& section, const ModelOutputs& site) {
          return read_vit(section, site, usual);
        },
        doc);
  };
  const auto plan = [](std::int64_t heads) {
    return VitPlan{.layers = 12, .heads = heads, .width = 64 * heads, .mlp = 256 * heads};
  };
  add("vit", std::nullopt, "a vision transformer (ViT) of any size, as torchvision builds it");
  add("vit_ti_16", plan(3), "ViT-Ti/16: width 192");
  add("vit_s_16", plan(6), "ViT-S/16: width 384");
  add("vit_b_16", plan(12), "ViT-B/16, torchvision's: width 768");
}

}  // namespace starling
