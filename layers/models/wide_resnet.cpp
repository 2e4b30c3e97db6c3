#include "core/operations/pointwise.h"
#include "layers/batch_norm.h"
#include "layers/builtin.h"
#include "layers/chain.h"
#include "layers/conv2d.h"
#include "layers/linear.h"
#include "layers/stateless.h"

namespace starling {

namespace {

/// A convolution without bias that keeps the size but for its stride; weights are kaiming normal
/// over fan out.
std::unique_ptr<Conv2d> wide_convolution(std::int64_t channels, std::int64_t kernel,
                                         std::int64_t stride) {
  const std::int64_t padding = kernel / 2;
  return std::make_unique<Conv2d>(
      Conv2dOptions{.out_channels = channels,
                    .window = {.kernel = {kernel, kernel},
                               .stride = {stride, stride},
                               .padding = {padding, padding}},
                    .bias = false,
                    .init = Conv2dOptions::WeightInit::kKaimingNormalFanOut});
}

/// norm → ReLU → 3×3 convolution, twice, and dropout before the second. The shortcut is x itself;
/// where the number of channels changes, a 1×1 convolution of what the first ReLU gives.
class PreactivationBlock : public Layer {
 public:
  PreactivationBlock(std::int64_t width, std::int64_t stride, double dropout)
      : width_(width), stride_(stride), dropout_(dropout) {}

 protected:
  Shape build(const Shape& input) override {
    norm1_ = &add_child("bn1", std::make_unique<BatchNorm>(), input);
    conv1_ = &add_child("conv1", wide_convolution(width_, 3, stride_), input);
    norm2_ = &add_child("bn2", std::make_unique<BatchNorm>(), conv1_->output_shape());
    conv2_ = &add_child("conv2", wide_convolution(width_, 3, 1), conv1_->output_shape());
    if (input[2] != width_)
      shortcut_ = &add_child("convShortcut", wide_convolution(width_, 1, stride_), input);
    return conv2_->output_shape();
  }
  Variable compute(const Variable& x, Pass& pass) override {
    const Variable active = norm1_->forward_fused(x, Activation::kRelu, {}, pass);
    Variable y = norm2_->forward_fused(conv1_->forward(active, pass), Activation::kRelu, {}, pass);
    y = conv2_->forward(functions::dropout(y, dropout_, pass), pass);
    return functions::add(y, shortcut_ ? shortcut_->forward(active, pass) : x, pass);
  }

 private:
  std::int64_t width_, stride_;
  double dropout_;
  BatchNorm* norm1_ = nullptr;
  BatchNorm* norm2_ = nullptr;
  Conv2d* conv1_ = nullptr;
  Conv2d* conv2_ = nullptr;
  Conv2d* shortcut_ = nullptr;
};

/// The wide residual networks of Zagoruyko and Komodakis 2016 (arXiv 1605.07146), WRN-depth-width:
/// three groups of (depth - 4)/6 blocks with 16, 32 and 64 times `width` channels. Tensors have the
/// names of the usual PyTorch port (block1.layer.0.convShortcut).
class WideResNet : public Chain {
 public:
  WideResNet(std::int64_t depth, std::int64_t width, double dropout, std::int64_t classes)
      : blocks_((depth - 4) / 6), width_(width), dropout_(dropout), classes_(classes) {}

 protected:
  Shape build(const Shape& input) override {
    if (input.rank() != 3) bad_shape(input, "an image H×W×C");
    Shape shape = add_chain("conv1", wide_convolution(16, 3, 1), input);
    for (std::int64_t group = 0; group < 3; ++group) {
      for (std::int64_t block = 0; block < blocks_; ++block) {
        const std::int64_t stride = group > 0 && block == 0 ? 2 : 1;
        shape = add_chain(
            fmt::format("block{}.layer.{}", group + 1, block),
            std::make_unique<PreactivationBlock>((16 << group) * width_, stride, dropout_), shape);
      }
    }
    norm_ = &add_child("bn1", std::make_unique<BatchNorm>(), shape);
    pool_ = &add_child("", std::make_unique<GlobalAvgPool>(), shape);
    linear_ = &add_child(
        "fc", std::make_unique<Linear>(classes_, true, Linear::WeightInit::kDefault, true),
        pool_->output_shape());
    return linear_->output_shape();
  }
  Variable compute(const Variable& x, Pass& pass) override {
    // Norm of what the first convolution and the blocks make.
    const Variable y = norm_->forward_fused(run_chain(x, pass), Activation::kRelu, {}, pass);
    return linear_->forward(pool_->forward(y, pass), pass);
  }

 private:
  std::int64_t blocks_, width_;
  double dropout_;
  std::int64_t classes_;
  BatchNorm* norm_ = nullptr;
  GlobalAvgPool* pool_ = nullptr;
  Linear* linear_ = nullptr;
};

}  // namespace

void builtin::add_wide_resnet(ModelRegistry& registry) {
  registry.add(
      "wide_resnet",
      [](ConfigSection& section, const ModelOutputs& site) {
        const std::int64_t depth =
            section.integer("depth", 28, Range::closed(10, 1000),
                            "number of layers: 6n + 4, with n blocks in each of three groups");
        if ((depth - 4) % 6 != 0) {
          section.error("depth",
                        "{} is not 6n + 4, so that three groups cannot have as many blocks each; "
                        "the nearest are {} and {}",
                        depth, depth - (depth - 4) % 6, depth - (depth - 4) % 6 + 6);
        }
        const std::int64_t width = section.integer("width", 10, Range::closed(1, 1000),
                                                   "factor of the widths 16, 32 and 64");
        const double dropout = section.number(
            "dropout", 0.0, Range::half_open(0, 1),
            "probability that a value between a block's convolutions becomes 0 in training");
        return std::make_unique<WideResNet>(depth, width, dropout, site.num_classes);
      },
      "the CIFAR wide ResNet, WRN-depth-width, with norms before convolutions");
}

}  // namespace starling
