#include <array>

#include "layers/batch_norm.h"
#include "layers/builtin.h"
#include "layers/conv2d.h"
#include "layers/functions.h"
#include "layers/global_avg_pool.h"
#include "layers/linear.h"
#include "layers/pool2d.h"

namespace starling {

namespace {

/// A convolution without bias that keeps the size but for its stride, kaiming normal (fan out).
std::unique_ptr<Conv2d> conv(std::int64_t channels, std::int64_t kernel, std::int64_t stride) {
  const std::int64_t padding = kernel / 2;
  return std::make_unique<Conv2d>(
      Conv2dOptions{.out_channels = channels,
                    .window = {.kernel = {kernel, kernel}, .stride = {stride, stride}, .padding = {padding, padding}},
                    .bias = false,
                    .init = Conv2dOptions::WeightInit::kKaimingNormalFanOut});
}

/// A convolution with its batch norm.
struct ConvNorm {
  Conv2d* conv = nullptr;
  BatchNorm* norm = nullptr;
  Variable forward(const Variable& x, bool relu, const Variable& residual, Pass& pass) const {
    return norm->forward_fused(conv->forward(x, pass), relu, residual, pass);
  }
};

/// A residual block: two 3×3 convolutions, or (bottleneck) 1×1, 3×3 with the stride, and 1×1 to four times the width. Where the shape
/// changes the shortcut is a 1×1 convolution with batch norm.
class Block : public Layer {
 public:
  Block(std::int64_t width, std::int64_t stride, bool bottleneck) : width_(width), stride_(stride), bottleneck_(bottleneck) {}

 protected:
  Shape build(const Shape& input) override {
    Shape shape = input;
    const auto add = [&](const std::string& suffix, std::int64_t channels, std::int64_t kernel, std::int64_t stride) {
      ConvNorm unit;
      unit.conv = &add_child("conv" + suffix, starling::conv(channels, kernel, stride), shape);
      unit.norm = &add_child("bn" + suffix, std::make_unique<BatchNorm>(), unit.conv->output_shape());
      shape = unit.norm->output_shape();
      units_.push_back(unit);
    };
    if (bottleneck_) {
      add("1", width_, 1, 1);
      add("2", width_, 3, stride_);
      add("3", 4 * width_, 1, 1);
    } else {
      add("1", width_, 3, stride_);
      add("2", width_, 3, 1);
    }
    if (shape != input) {
      downsample_.conv = &add_child("downsample.0", starling::conv(shape[2], 1, stride_), input);
      downsample_.norm = &add_child("downsample.1", std::make_unique<BatchNorm>(), downsample_.conv->output_shape());
    }
    return shape;
  }
  Variable compute(const Variable& x, Pass& pass) override {
    x.value();  // two read it: a pending norm is written out once
    Variable y = x;
    for (std::size_t i = 0; i + 1 < units_.size(); ++i) y = units_[i].forward(y, true, {}, pass);
    y = units_.back().conv->forward(y, pass);
    const Variable shortcut = downsample_.conv ? downsample_.forward(x, false, {}, pass) : x;
    return units_.back().norm->forward_fused(y, true, shortcut, pass);
  }

 private:
  std::int64_t width_, stride_;
  bool bottleneck_;
  std::vector<ConvNorm> units_;
  ConvNorm downsample_;
};

/// The ImageNet ResNets of He et al. 2015 (arXiv 1512.03385), with torchvision's architecture (the stride of a bottleneck in its 3×3
/// convolution), names and initialisation.
class ResNet : public Layer {
 public:
  ResNet(std::array<int, 4> blocks, bool bottleneck, bool cifar_stem, std::int64_t classes)
      : blocks_(blocks), bottleneck_(bottleneck), cifar_stem_(cifar_stem), classes_(classes) {}

 protected:
  Shape build(const Shape& input) override {
    if (input.rank() != 3) bad_shape(input, "an image H×W×C");
    stem_.conv = &add_child("conv1", cifar_stem_ ? starling::conv(64, 3, 1) : starling::conv(64, 7, 2), input);
    stem_.norm = &add_child("bn1", std::make_unique<BatchNorm>(), stem_.conv->output_shape());
    Shape shape = stem_.norm->output_shape();
    if (!cifar_stem_) {
      const Window2d window{.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
      shape = add_chain("", std::make_unique<Pool2d>(Pooling::kMax, window), shape);
    }
    std::int64_t width = 64;
    for (std::size_t stage = 0; stage < blocks_.size(); ++stage, width *= 2) {
      for (int block = 0; block < blocks_[stage]; ++block) {
        const std::int64_t stride = stage > 0 && block == 0 ? 2 : 1;
        shape = add_chain(fmt::format("layer{}.{}", stage + 1, block), std::make_unique<Block>(width, stride, bottleneck_), shape);
      }
    }
    shape = add_chain("", std::make_unique<GlobalAvgPool>(), shape);
    return add_chain("fc", std::make_unique<Linear>(classes_), shape);
  }
  Variable compute(const Variable& x, Pass& pass) override {
    Variable y = stem_.forward(x, true, {}, pass);
    for (Layer* layer : chain_) y = layer->forward(y, pass);
    return y;
  }

 private:
  Shape add_chain(const std::string& name, std::unique_ptr<Layer> layer, const Shape& input) {
    chain_.push_back(&add_child(name, std::move(layer), input));
    return chain_.back()->output_shape();
  }

  std::array<int, 4> blocks_;
  bool bottleneck_, cifar_stem_;
  std::int64_t classes_;
  ConvNorm stem_;
  std::vector<Layer*> chain_;  // all that follows the stem
};

}  // namespace

void builtin::add_resnet(ModelRegistry& registry) {
  struct Variant {
    int depth;
    std::array<int, 4> blocks;
    bool bottleneck;
  };
  const Variant variants[] = {{18, {2, 2, 2, 2}, false},
                              {34, {3, 4, 6, 3}, false},
                              {50, {3, 4, 6, 3}, true},
                              {101, {3, 4, 23, 3}, true},
                              {152, {3, 8, 36, 3}, true}};
  for (const Variant& variant : variants) {
    registry.add(
        fmt::format("resnet{}", variant.depth),
        [variant](ConfigSection& section, const ModelOutputs& site) {
          const std::string stem =
              section.choice("stem", "imagenet", {"imagenet", "cifar"},
                             "imagenet: 7×7 convolution of stride 2 and max pooling; cifar: 3×3 of stride 1, for small images");
          return std::make_unique<ResNet>(variant.blocks, variant.bottleneck, stem == "cifar", site.num_classes);
        },
        fmt::format("the ImageNet ResNet of {} layers, as torchvision builds it", variant.depth));
  }
}

}  // namespace starling
