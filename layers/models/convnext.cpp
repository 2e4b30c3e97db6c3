#include <array>

#include "core/operations/pointwise.h"
#include "layers/builtin.h"
#include "layers/chain.h"
#include "layers/conv2d.h"
#include "layers/layer_norm.h"
#include "layers/layer_scale.h"
#include "layers/linear.h"
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
  return std::make_unique<Linear>(features, true, Linear::WeightInit::kNormal002, true);
}

/// x + scale · (7×7 convolution of every channel alone → norm → 4 times the channels → GELU →
/// back), the sum without its second term for samples that stochastic depth drops. What follows the
/// convolution sees every pixel as a row of its own.
class ConvNextBlock : public Layer {
 public:
  ConvNextBlock(double layer_scale, double drop) : initial_scale_(layer_scale), drop_(drop) {}

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
class ConvNext : public Chain {
 public:
  ConvNext(const ConvNextPlan& plan, std::int64_t classes) : plan_(plan), classes_(classes) {}

 protected:
  Shape build(const Shape& input) override {
    if (input.rank() != 3) bad_shape(input, "an image H×W×C");
    if (input[0] < 32 || input[1] < 32) bad_shape(input, "an image of 32×32 pixels or more");
    std::int64_t total = 0, at = 0;
    for (const std::int64_t blocks : plan_.blocks) total += blocks;
    std::vector<std::unique_ptr<Layer>> features;
    features.push_back(chain(convnext_convolution(plan_.widths[0], 4, 4, 0, 1),
                             std::make_unique<LayerNorm>(kConvNextEps)));
    for (std::size_t stage = 0; stage < plan_.blocks.size(); ++stage) {
      if (stage > 0)
        features.push_back(chain(std::make_unique<LayerNorm>(kConvNextEps),
                                 convnext_convolution(plan_.widths[stage], 2, 2, 0, 1)));
      std::vector<std::unique_ptr<Layer>> blocks;
      for (std::int64_t block = 0; block < plan_.blocks[stage]; ++block, ++at) {
        // The deeper a block, the more often it is left out.
        const double drop = total > 1 ? plan_.stochastic_depth * static_cast<double>(at) /
                                            static_cast<double>(total - 1)
                                      : 0.0;
        blocks.push_back(std::make_unique<ConvNextBlock>(plan_.layer_scale, drop));
      }
      features.push_back(std::make_unique<Sequential>(std::move(blocks)));
    }
    std::vector<std::unique_ptr<Layer>> classifier;
    classifier.push_back(std::make_unique<LayerNorm>(kConvNextEps));
    classifier.push_back(std::make_unique<Flatten>());
    classifier.push_back(convnext_linear(classes_));
    Shape shape = add_chain("features", std::make_unique<Sequential>(std::move(features)), input);
    shape = add_chain("", std::make_unique<GlobalAvgPool>(), shape);
    return add_chain("classifier", std::make_unique<Sequential>(std::move(classifier)), shape);
  }

 private:
  static std::unique_ptr<Sequential> chain(std::unique_ptr<Layer> first,
                                           std::unique_ptr<Layer> second) {
    std::vector<std::unique_ptr<Layer>> layers;
    layers.push_back(std::move(first));
    layers.push_back(std::move(second));
    return std::make_unique<Sequential>(std::move(layers));
  }

  ConvNextPlan plan_;
  std::int64_t classes_;
};

}  // namespace

void builtin::add_convnext(ModelRegistry& registry) {
  registry.add(
      "convnext_tiny",
      [](ConfigSection& section, const ModelOutputs& site) {
        ConvNextPlan plan{{3, 3, 9, 3}, {96, 192, 384, 768}};
        plan.layer_scale = section.number("layer_scale", 1e-6, Range::any(),
                                          "initial factor of every channel at the end of a block");
        plan.stochastic_depth = section.number("stochastic_depth", 0.1, Range::half_open(0, 1),
                                               "probability that the last block is left out for a "
                                               "sample in training; from the first block "
                                               "on it grows from 0");
        return std::make_unique<ConvNext>(plan, site.num_classes);
      },
      "ConvNeXt-T, as torchvision builds it");
}

}  // namespace starling
