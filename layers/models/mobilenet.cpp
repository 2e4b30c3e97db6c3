#include <algorithm>
#include <array>
#include <cmath>

#include "core/operations/pointwise.h"
#include "layers/batch_norm.h"
#include "layers/builtin.h"
#include "layers/chain.h"
#include "layers/conv2d.h"
#include "layers/linear.h"
#include "layers/sequential.h"
#include "layers/stateless.h"

namespace starling {

namespace {

using LayerList = std::vector<std::unique_ptr<Layer>>;

/// Convolution without bias, batch norm, and ReLU6 if `active`, added to `layers`.
void add_mobile_unit(LayerList& layers, std::int64_t channels, std::int64_t kernel,
                     std::int64_t stride, std::int64_t groups, bool active) {
  const std::int64_t padding = kernel / 2;
  layers.push_back(std::make_unique<Conv2d>(
      Conv2dOptions{.out_channels = channels,
                    .window = {.kernel = {kernel, kernel},
                               .stride = {stride, stride},
                               .padding = {padding, padding},
                               .groups = groups},
                    .bias = false,
                    .init = Conv2dOptions::WeightInit::kKaimingNormalFanOut}));
  layers.push_back(std::make_unique<BatchNorm>());
  if (active) layers.push_back(std::make_unique<ActivationLayer>(Activation::kRelu6));
}
/// The unit as a layer of its own, whose tensors are named 0.weight, 1.weight, …
std::unique_ptr<Sequential> mobile_unit(std::int64_t channels, std::int64_t kernel,
                                        std::int64_t stride, std::int64_t groups = 1) {
  LayerList layers;
  add_mobile_unit(layers, channels, kernel, stride, groups, true);
  return std::make_unique<Sequential>(std::move(layers));
}

/// An inverted residual: 1×1 to `expansion` times the channels, a 3×3 convolution of every channel
/// alone, 1×1 to `width` channels without an activation, and x itself added where the shape is the
/// same.
class InvertedResidual : public Layer {
 public:
  InvertedResidual(std::int64_t width, std::int64_t stride, std::int64_t expansion)
      : width_(width), stride_(stride), expansion_(expansion) {}

 protected:
  Shape build(const Shape& input) override {
    const std::int64_t inner = expansion_ * input[2];
    LayerList layers;
    if (expansion_ != 1) layers.push_back(mobile_unit(inner, 1, 1));
    layers.push_back(mobile_unit(inner, 3, stride_, inner));
    add_mobile_unit(layers, width_, 1, 1, 1, false);
    body_ = &add_child("conv", std::make_unique<Sequential>(std::move(layers)), input);
    adds_input_ = stride_ == 1 && input[2] == width_;
    return body_->output_shape();
  }
  Variable compute(const Variable& x, Pass& pass) override {
    return adds_input_ ? body_->forward_residual(x, nullptr, Activation::kNone, pass)
                       : body_->forward(x, pass);
  }

 private:
  std::int64_t width_, stride_, expansion_;
  Sequential* body_ = nullptr;
  bool adds_input_ = false;
};

/// Channels times `factor`, as a multiple of 8 that is not less than 90 % of that.
std::int64_t scaled_width(std::int64_t channels, double factor) {
  const double wanted = static_cast<double>(channels) * factor;
  const auto nearest = std::max<std::int64_t>(8, static_cast<std::int64_t>(wanted + 4.0) / 8 * 8);
  return static_cast<double>(nearest) < 0.9 * wanted ? nearest + 8 : nearest;
}

/// MobileNetV2 of Sandler et al. 2018 (arXiv 1801.04381, table 2), with torchvision's names and
/// initialisation.
class MobileNetV2 : public Chain {
 public:
  MobileNetV2(double width, double dropout, std::int64_t classes)
      : width_(width), dropout_(dropout), classes_(classes) {}

 protected:
  Shape build(const Shape& input) override {
    if (input.rank() != 3) bad_shape(input, "an image H×W×C");
    struct Stage {
      std::int64_t expansion, channels, blocks, stride;
    };
    constexpr std::array<Stage, 7> kStages{{{1, 16, 1, 1},
                                            {6, 24, 2, 2},
                                            {6, 32, 3, 2},
                                            {6, 64, 4, 2},
                                            {6, 96, 3, 1},
                                            {6, 160, 3, 2},
                                            {6, 320, 1, 1}}};
    LayerList features;
    features.push_back(mobile_unit(scaled_width(32, width_), 3, 2));
    for (const Stage& stage : kStages) {
      for (std::int64_t block = 0; block < stage.blocks; ++block) {
        features.push_back(std::make_unique<InvertedResidual>(
            scaled_width(stage.channels, width_), block == 0 ? stage.stride : 1, stage.expansion));
      }
    }
    features.push_back(mobile_unit(scaled_width(1280, std::max(1.0, width_)), 1, 1));
    LayerList classifier;
    classifier.push_back(std::make_unique<DropoutLayer>(dropout_));
    classifier.push_back(
        std::make_unique<Linear>(classes_, true, Linear::WeightInit::kSmallNormal, true));
    Shape shape = add_chain("features", std::make_unique<Sequential>(std::move(features)), input);
    shape = add_chain("", std::make_unique<GlobalAvgPool>(), shape);
    return add_chain("classifier", std::make_unique<Sequential>(std::move(classifier)), shape);
  }

 private:
  double width_, dropout_;
  std::int64_t classes_;
};

}  // namespace

void builtin::add_mobilenet(ModelRegistry& registry) {
  registry.add(
      "mobilenet_v2",
      [](ConfigSection& section, const ModelOutputs& site) {
        const double width = section.number("width_mult", 1.0, Range::closed(0.05, 16),
                                            "factor of all widths, which are rounded to multiples "
                                            "of 8; the last convolution has 1280 "
                                            "channels at least");
        const double dropout = section.number(
            "dropout", 0.2, Range::half_open(0, 1),
            "probability that a feature becomes 0 in training, before the classifier");
        return std::make_unique<MobileNetV2>(width, dropout, site.num_classes);
      },
      "MobileNetV2, of inverted residuals with depthwise convolutions, as torchvision builds it");
}

}  // namespace starling
