#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/operations/pointwise.h"
#include "layers/batch_norm.h"
#include "layers/builtin.h"
#include "layers/conv2d.h"
#include "layers/linear.h"
#include "layers/models/image_model.h"
#include "layers/sequential.h"
#include "layers/stateless.h"

namespace starling {

namespace {

/// Adds a convolution without bias, a batch norm, and ReLU6 if `active`.
void add_mobile_unit(Sequential& layers, std::int64_t channels, std::int64_t kernel,
                     std::int64_t stride, std::int64_t groups, bool active) {
  layers.add(plain_convolution(channels, kernel, stride, groups));
  layers.add(std::make_unique<BatchNorm>());
  if (active) layers.add(Activation::kRelu6);
}
/// The unit as a layer with tensors 0.weight, 1.weight, …
std::unique_ptr<Sequential> mobile_unit(std::int64_t channels, std::int64_t kernel,
                                        std::int64_t stride, std::int64_t groups = 1) {
  auto unit = std::make_unique<Sequential>();
  add_mobile_unit(*unit, channels, kernel, stride, groups, true);
  return unit;
}

/// An inverted residual: 1×1 convolution to `expansion` times the channels, depthwise 3×3
/// convolution, 1×1 convolution to `width` channels without an activation; x is added if the shape
/// is unchanged.
std::unique_ptr<Layer> inverted_residual(std::int64_t inputs, std::int64_t width,
                                         std::int64_t stride, std::int64_t expansion) {
  const std::int64_t inner = expansion * inputs;
  auto body = std::make_unique<Sequential>();
  if (expansion != 1) body->add(mobile_unit(inner, 1, 1));
  body->add(mobile_unit(inner, 3, stride, inner));
  add_mobile_unit(*body, width, 1, 1, 1, false);
  if (stride == 1 && inputs == width) return std::make_unique<Residual>(std::move(body), "conv");
  auto block = std::make_unique<Sequential>();
  block->add("conv", std::move(body));
  block->set_block();
  return block;
}

/// Channels times `factor`, rounded to a multiple of 8 but not below 90 %.
std::int64_t scaled_width(std::int64_t channels, double factor) {
  const double wanted = static_cast<double>(channels) * factor;
  const auto nearest = std::max<std::int64_t>(8, static_cast<std::int64_t>(wanted + 4.0) / 8 * 8);
  return static_cast<double>(nearest) < 0.9 * wanted ? nearest + 8 : nearest;
}

/// MobileNetV2 of Sandler et al. 2018 (arXiv 1801.04381, table 2), with torchvision's names and
/// initialisation.
std::unique_ptr<Layer> mobilenet_v2(double width, double dropout, std::int64_t classes) {
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
  auto model = std::make_unique<ImageModel>();
  auto features = std::make_unique<Sequential>(), classifier = std::make_unique<Sequential>();
  std::int64_t channels = scaled_width(32, width);
  features->add(mobile_unit(channels, 3, 2));
  for (const Stage& stage : kStages) {
    const std::int64_t outputs = scaled_width(stage.channels, width);
    for (std::int64_t block = 0; block < stage.blocks; ++block) {
      features->add(inverted_residual(std::exchange(channels, outputs), outputs,
                                      block == 0 ? stage.stride : 1, stage.expansion));
    }
  }
  features->add(mobile_unit(scaled_width(1280, std::max(1.0, width)), 1, 1));
  classifier->add(dropout_layer(dropout));
  classifier->add(std::make_unique<Linear>(classes, Linear::Given{Init::normal(0.01)}));
  model->add("features", std::move(features));
  model->add(global_avg_pool());
  model->add("classifier", std::move(classifier));
  return model;
}

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
        return mobilenet_v2(width, dropout, site.num_classes);
      },
      "MobileNetV2, of inverted residuals with depthwise convolutions, as torchvision builds it");
}

}  // namespace starling
