#include <array>

#include "layers/batch_norm.h"
#include "layers/builtin.h"
#include "layers/conv2d.h"
#include "layers/functions.h"
#include "layers/global_avg_pool.h"
#include "layers/linear.h"

namespace starling {

namespace {

std::unique_ptr<Conv2d> conv3x3(std::int64_t channels, std::int64_t stride) {
  return std::make_unique<Conv2d>(Conv2dOptions{.out_channels = channels,
                                                .window = {.kernel = {3, 3}, .stride = {stride, stride}, .padding = {1, 1}},
                                                .bias = false,
                                                .init = Conv2dOptions::WeightInit::kKaimingNormalFanIn});
}

/// Two 3×3 convolutions and a shortcut without parameters (option A of the paper).
class Block : public Layer {
 public:
  Block(std::int64_t channels, std::int64_t stride) : channels_(channels), stride_(stride) {}

 protected:
  Shape build(const Shape& input) override {
    conv1_ = &add_child("conv1", conv3x3(channels_, stride_), input);
    bn1_ = &add_child("bn1", std::make_unique<BatchNorm>(), conv1_->output_shape());
    conv2_ = &add_child("conv2", conv3x3(channels_, 1), bn1_->output_shape());
    bn2_ = &add_child("bn2", std::make_unique<BatchNorm>(), conv2_->output_shape());
    identity_ = bn2_->output_shape() == input;
    return bn2_->output_shape();
  }
  Variable compute(const Variable& x, Pass& pass) override {
    x.value();  // two read it: a pending norm is written out once
    Variable y = conv1_->forward(x, pass);
    y = bn1_->forward_fused(y, true, {}, pass);
    y = conv2_->forward(y, pass);
    const Variable shortcut = identity_ ? x : functions::subsample_pad(x, stride_, channels_, pass);
    return bn2_->forward_fused(y, true, shortcut, pass);
  }

 private:
  std::int64_t channels_, stride_;
  bool identity_ = true;
  Conv2d *conv1_ = nullptr, *conv2_ = nullptr;
  BatchNorm *bn1_ = nullptr, *bn2_ = nullptr;
};

/// The CIFAR ResNets of He et al. 2015 (arXiv 1512.03385, section 4.2): 6n + 2 layers, three stages of n blocks with 16, 32 and 64
/// channels. Weights are kaiming normal (fan in), as in the implementations whose accuracies are usually quoted.
class ResNetCifar : public Layer {
 public:
  ResNetCifar(std::int64_t blocks, std::int64_t classes) : blocks_(blocks), classes_(classes) {}

 protected:
  Shape build(const Shape& input) override {
    if (input.rank() != 3) bad_shape(input, "an image H×W×C");
    conv1_ = &add_child("conv1", conv3x3(16, 1), input);
    bn1_ = &add_child("bn1", std::make_unique<BatchNorm>(), conv1_->output_shape());
    Shape shape = bn1_->output_shape();
    constexpr std::array<std::int64_t, 3> kChannels{16, 32, 64};
    for (std::size_t stage = 0; stage < kChannels.size(); ++stage) {
      for (std::int64_t block = 0; block < blocks_; ++block) {
        const std::int64_t stride = stage > 0 && block == 0 ? 2 : 1;
        Block& child = add_child(fmt::format("layer{}.{}", stage + 1, block), std::make_unique<Block>(kChannels[stage], stride), shape);
        shape = child.output_shape();
        stages_.push_back(&child);
      }
    }
    pool_ = &add_child("", std::make_unique<GlobalAvgPool>(), shape);
    fc_ = &add_child("fc", std::make_unique<Linear>(classes_, true, Linear::WeightInit::kKaimingNormal), pool_->output_shape());
    return fc_->output_shape();
  }
  Variable compute(const Variable& x, Pass& pass) override {
    Variable y = conv1_->forward(x, pass);
    y = bn1_->forward_fused(y, true, {}, pass);
    for (Block* block : stages_) y = block->forward(y, pass);
    y = pool_->forward(y, pass);
    return fc_->forward(y, pass);
  }

 private:
  std::int64_t blocks_, classes_;
  Conv2d* conv1_ = nullptr;
  BatchNorm* bn1_ = nullptr;
  std::vector<Block*> stages_;
  GlobalAvgPool* pool_ = nullptr;
  Linear* fc_ = nullptr;
};

}  // namespace

void builtin::add_resnet_cifar(ModelRegistry& registry) {
  for (const std::int64_t depth : {20, 32, 44, 56, 110}) {
    registry.add(
        fmt::format("resnet{}", depth),
        [depth](ConfigSection&, const ModelOutputs& site) { return std::make_unique<ResNetCifar>((depth - 2) / 6, site.num_classes); },
        fmt::format("the CIFAR ResNet of {} layers, with option-A shortcuts", depth));
  }
}

}  // namespace starling
