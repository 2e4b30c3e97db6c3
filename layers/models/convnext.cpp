#include <array>

#include "core/operations/pointwise.h"
#include "layers/builtin.h"
#include "layers/conv2d.h"
#include "layers/layer_norm.h"
#include "layers/layer_scale.h"
#include "layers/linear.h"
#include "layers/models/image_model.h"
#include "layers/sequential.h"
#include "layers/stateless.h"

namespace starling {

namespace {

constexpr double kConvNextEps = 1e-6;  // of all its norms

std::unique_ptr<Conv2d> convnext_convolution(std::int64_t channels, std::int64_t kernel,
                                             std::int64_t stride, std::int64_t padding,
                                             std::int64_t groups) {
  return std::make_unique<Conv2d>(Conv2dOptions{.out_channels = channels,
                                                .window = {.kernel = {kernel, kernel},
                                                           .stride = {stride, stride},
                                                           .padding = {padding, padding},
                                                           .groups = groups},
                                                .init = Conv2dOptions::WeightInit::kNormal002,
                                                .zero_bias = true});
}
std::unique_ptr<Linear> convnext_linear(std::int64_t features) {
  return std::make_unique<Linear>(features, Linear::Given{Init::normal(0.02)});
}

/// x + scale · (7×7 depthwise convolution → norm → linear to 4 times the channels → GELU → linear
/// back). Stochastic depth drops the second term for some samples. The layers after the convolution
/// process each pixel as a row.
class ConvNextBlock : public Layer {
 public:
  ConvNextBlock(double layer_scale, double drop) : initial_scale_(layer_scale), drop_(drop) {
    set_block();
  }

 protected:
  Shape build(const Shape& input) override {
    const std::int64_t channels = input[2];
    scale_ = &add_child("", std::make_unique<LayerScale>(initial_scale_, "layer_scale"), input);
    convolution_ = &add_child("block.0", convnext_convolution(channels, 7, 1, 3, channels), input);
    norm_ = &add_child("block.2", std::make_unique<LayerNorm>(kConvNextEps), input);
    widen_ = &add_child("block.3", convnext_linear(4 * channels), input);
    narrow_ = &add_child("block.5", convnext_linear(channels), widen_->output_shape());
    return input;
  }
  Variable compute(const Variable& x, Pass& pass) override {
    Variable y = norm_->forward(convolution_->forward(x, pass), pass);
    y = functions::activation(widen_->forward(y, pass), Activation::kGelu, pass);
    y = narrow_->forward(y, pass);
    if (!pass.training || drop_ <= 0.0) return scale_->forward_residual(y, x, pass);
    return functions::add(functions::stochastic_depth(scale_->forward(y, pass), drop_, pass), x,
                          pass);
  }

 private:
  double initial_scale_, drop_;
  LayerScale* scale_ = nullptr;
  Conv2d* convolution_ = nullptr;
  LayerNorm* norm_ = nullptr;
  Linear* widen_ = nullptr;
  Linear* narrow_ = nullptr;
};

struct ConvNextPlan {
  std::array<std::int64_t, 4> blocks, widths;
  double layer_scale = 1e-6, stochastic_depth = 0.1;
};

/// The networks of Liu et al. 2022 (arXiv 2201.03545), with torchvision's names and initialisation:
/// 4×4 patches, four stages of blocks with norm and 2×2 convolution of stride 2 between them, the
/// mean over the pixels, norm, and a linear layer.
std::unique_ptr<Layer> convnext(const ConvNextPlan& plan, std::int64_t classes) {
  std::int64_t total = 0, at = 0;
  for (const std::int64_t blocks : plan.blocks) total += blocks;
  const auto norm = [] { return std::make_unique<LayerNorm>(kConvNextEps); };
  auto model = std::make_unique<ImageModel>(32);
  auto features = std::make_unique<Sequential>(), classifier = std::make_unique<Sequential>();
  for (std::size_t stage = 0; stage < plan.blocks.size(); ++stage) {
    auto smaller = std::make_unique<Sequential>(), blocks = std::make_unique<Sequential>();
    if (stage > 0) smaller->add(norm());
    const std::int64_t patch = stage > 0 ? 2 : 4;
    smaller->add(convnext_convolution(plan.widths[stage], patch, patch, 0, 1));
    if (stage == 0) smaller->add(norm());
    for (std::int64_t block = 0; block < plan.blocks[stage]; ++block, ++at) {
      // Deeper blocks are dropped more often.
      const double drop = total > 1 ? plan.stochastic_depth * static_cast<double>(at) /
                                          static_cast<double>(total - 1)
                                    : 0.0;
      blocks->add(std::make_unique<ConvNextBlock>(plan.layer_scale, drop));
    }
    features->add(std::move(smaller));
    features->add(std::move(blocks));
  }
  classifier->add(norm());
  classifier->add(flatten_layer());
  classifier->add(convnext_linear(classes));
  model->add("features", std::move(features));
  model->add(global_avg_pool());
  model->add("classifier", std::move(classifier));
  return model;
}

}  // namespace

void builtin::add_convnext(ModelRegistry& registry) {
  registry.add(
      "convnext_tiny",
      [](ConfigSection& section, const ModelOutputs& site) {
        ConvNextPlan plan{{3, 3, 9, 3}, {96, 192, 384, 768}};
        section.read("layer_scale", plan.layer_scale, Range::any(),
                     "initial factor of every channel at the end of a block");
        section.read("stochastic_depth", plan.stochastic_depth, Range::half_open(0, 1),
                     "probability that the last block is left out for a sample in training; from "
                     "the first block on it grows from 0");
        return convnext(plan, site.num_classes);
      },
      "ConvNeXt-T, as torchvision builds it");
}

}  // namespace starling
