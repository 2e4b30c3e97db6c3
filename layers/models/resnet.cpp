#include <utility>

#include "core/operations/convolutions.h"
#include "core/operations/pointwise.h"
#include "layers/batch_norm.h"
#include "layers/builtin.h"
#include "layers/chain.h"
#include "layers/conv2d.h"
#include "layers/linear.h"
#include "layers/stateless.h"

namespace starling {

namespace {

using WeightInit = Conv2dOptions::WeightInit;

/// A convolution without bias that keeps the size but for its stride.
std::unique_ptr<Conv2d> convolution(std::int64_t channels, std::int64_t kernel, std::int64_t stride,
                                    WeightInit init) {
  const std::int64_t padding = kernel / 2;
  return std::make_unique<Conv2d>(Conv2dOptions{.out_channels = channels,
                                                .window = {.kernel = {kernel, kernel},
                                                           .stride = {stride, stride},
                                                           .padding = {padding, padding}},
                                                .bias = false,
                                                .init = init});
}

/// A convolution with its batch norm, and the blur before it where there is one.
struct ConvNorm {
  Pool2d* blur = nullptr;
  Conv2d* conv = nullptr;
  BatchNorm* norm = nullptr;
  Variable convolve(const Variable& x, Pass& pass) const {
    return conv->forward(blur ? blur->forward(x, pass) : x, pass);
  }
  Variable forward(const Variable& x, Activation active, const Variable& residual,
                   Pass& pass) const {
    return norm->forward_fused(convolve(x, pass), active, residual, pass);
  }
};

/// Kinds of block: two 3×3 convolutions, or 1×1, 3×3 with the stride, and 1×1 to four times the
/// width. Where the shape changes the shortcut is a 1×1 convolution with batch norm, or without
/// parameters (the papers' option A). `inner` multiplies the width of all but a bottleneck's last
/// convolution.
enum class BlockKind { kPlain, kBottleneck, kOptionA };

class Block : public Layer {
 public:
  Block(BlockKind kind, std::int64_t width, std::int64_t inner, std::int64_t stride,
        WeightInit init, bool blurs)
      : kind_(kind), width_(width), inner_(inner), stride_(stride), init_(init), blurs_(blurs) {}

 protected:
  Shape build(const Shape& input) override {
    Shape shape = input;
    const auto add = [&](const std::string& suffix, std::int64_t channels, std::int64_t kernel,
                         std::int64_t stride) {
      units_.push_back(unit("conv" + suffix, "bn" + suffix, channels, kernel, stride, shape));
      shape = units_.back().norm->output_shape();
    };
    if (kind_ == BlockKind::kBottleneck) {
      add("1", inner_ * width_, 1, 1);
      add("2", inner_ * width_, 3, stride_);
      add("3", 4 * width_, 1, 1);
    } else {
      add("1", width_, 3, stride_);
      add("2", width_, 3, 1);
    }
    changes_ = shape != input;
    if (changes_ && kind_ != BlockKind::kOptionA)
      downsample_ = unit("downsample.0", "downsample.1", shape[2], 1, stride_, input);
    return shape;
  }
  Variable compute(const Variable& x, Pass& pass) override {
    Variable y = x;
    for (std::size_t i = 0; i + 1 < units_.size(); ++i)
      y = units_[i].forward(y, Activation::kRelu, {}, pass);
    y = units_.back().convolve(y, pass);
    return units_.back().norm->forward_fused(y, Activation::kRelu, shortcut(x, pass), pass);
  }

 private:
  /// FFCV's rule (libffcv/ffcv-imagenet, train_imagenet.py, use_blurpool): before every convolution
  /// with a stride and 16 input channels or more. A 1×1 convolution reads only each stride-th
  /// pixel, so that only these are blurred, and it goes without a stride.
  ConvNorm unit(const std::string& conv, const std::string& norm, std::int64_t channels,
                std::int64_t kernel, std::int64_t stride, const Shape& input) {
    ConvNorm result;
    Shape shape = input;
    if (blurs_ && stride > 1 && input[2] >= 16) {
      const std::int64_t step = kernel == 1 ? std::exchange(stride, 1) : 1;
      const Window2d window{.kernel = {3, 3}, .stride = {step, step}, .padding = {1, 1}};
      result.blur =
          &add_child(conv + ".blur", std::make_unique<Pool2d>(Pooling::kBlur, window), shape);
      shape = result.blur->output_shape();
    }
    result.conv = &add_child(conv, convolution(channels, kernel, stride, init_), shape);
    result.norm = &add_child(norm, std::make_unique<BatchNorm>(), result.conv->output_shape());
    return result;
  }
  Variable shortcut(const Variable& x, Pass& pass) const {
    if (!changes_) return x;
    return downsample_.conv ? downsample_.forward(x, Activation::kNone, {}, pass)
                            : functions::subsample_pad(x, stride_, width_, pass);
  }

  BlockKind kind_;
  std::int64_t width_, inner_, stride_;
  WeightInit init_;
  bool blurs_;
  bool changes_ = false;
  std::vector<ConvNorm> units_;
  ConvNorm downsample_;
};

/// One of the residual networks of He et al. 2015 (arXiv 1512.03385): a stem, stages of blocks of
/// which each but the first halves the size and doubles the width, the mean over the pixels, and a
/// linear layer.
struct Plan {
  std::vector<std::int64_t> blocks;  ///< of each stage
  BlockKind kind = BlockKind::kPlain;
  std::int64_t width = 64;  ///< of the stem and the first stage
  bool small_stem = false;  ///< 3×3 of stride 1; else 7×7 of stride 2 and max pooling
  WeightInit init = WeightInit::kKaimingNormalFanOut;
  Linear::WeightInit linear_init = Linear::WeightInit::kDefault;
  std::int64_t inner = 1;  ///< factor of the width inside bottlenecks
  bool blurs = false;      ///< before convolutions with strides
};

class ResNet : public Chain {
 public:
  ResNet(Plan plan, std::int64_t classes) : plan_(std::move(plan)), classes_(classes) {}

 protected:
  Shape build(const Shape& input) override {
    if (input.rank() != 3) bad_shape(input, "an image H×W×C");
    std::int64_t width = plan_.width;
    const bool small = plan_.small_stem;
    stem_.conv =
        &add_child("conv1", convolution(width, small ? 3 : 7, small ? 1 : 2, plan_.init), input);
    stem_.norm = &add_child("bn1", std::make_unique<BatchNorm>(), stem_.conv->output_shape());
    Shape shape = stem_.norm->output_shape();
    if (!small) {
      const Window2d window{.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
      shape = add_chain("", std::make_unique<Pool2d>(Pooling::kMax, window), shape);
    }
    for (std::size_t stage = 0; stage < plan_.blocks.size(); ++stage, width *= 2) {
      for (std::int64_t block = 0; block < plan_.blocks[stage]; ++block) {
        const std::int64_t stride = stage > 0 && block == 0 ? 2 : 1;
        shape = add_chain(fmt::format("layer{}.{}", stage + 1, block),
                          std::make_unique<Block>(plan_.kind, width, plan_.inner, stride,
                                                  plan_.init, plan_.blurs),
                          shape);
      }
    }
    shape = add_chain("", std::make_unique<GlobalAvgPool>(), shape);
    return add_chain("fc", std::make_unique<Linear>(classes_, true, plan_.linear_init), shape);
  }
  Variable compute(const Variable& x, Pass& pass) override {
    return run_chain(stem_.forward(x, Activation::kRelu, {}, pass), pass);
  }

 private:
  Plan plan_;
  std::int64_t classes_;
  ConvNorm stem_;
};

}  // namespace

void builtin::add_resnet(ModelRegistry& registry) {
  // 6n + 2 layers, n blocks a stage (section 4.2). Weights are kaiming normal (fan in), as in the
  // implementations whose accuracies are usually quoted.
  const auto read_blur = [](ConfigSection& section) {
    return section.boolean("blur_pool", false,
                           "blur with the 3×3 filter [1 2 1]⊗[1 2 1]/16 before every convolution "
                           "that has a stride and 16 input channels or "
                           "more; adds no tensors");
  };
  for (const std::int64_t depth : {20, 32, 44, 56, 110}) {
    const std::int64_t n = (depth - 2) / 6;
    const Plan plan{{n, n, n},
                    BlockKind::kOptionA,
                    16,
                    true,
                    WeightInit::kKaimingNormalFanIn,
                    Linear::WeightInit::kKaimingNormal};
    registry.add(
        fmt::format("resnet{}", depth),
        [plan, read_blur](ConfigSection& section, const ModelOutputs& site) {
          Plan own = plan;
          own.blurs = read_blur(section);
          return std::make_unique<ResNet>(std::move(own), site.num_classes);
        },
        fmt::format("the CIFAR ResNet of {} layers, with option-A shortcuts", depth));
  }
  // These have torchvision's architecture (the stride of a bottleneck in its 3×3 convolution), its
  // names and initialisation.
  const auto imagenet = [&](const std::string& name, Plan of_name, const std::string& what) {
    registry.add(
        name,
        [plan = std::move(of_name), read_blur](ConfigSection& section, const ModelOutputs& site) {
          Plan own = plan;
          own.small_stem = section.choice("stem", "imagenet", {"imagenet", "cifar"},
                                          "imagenet: 7×7 convolution of stride 2 and max pooling; "
                                          "cifar: 3×3 of stride 1, for small images") == "cifar";
          own.blurs = read_blur(section);
          return std::make_unique<ResNet>(std::move(own), site.num_classes);
        },
        what + ", as torchvision builds it");
  };
  const auto plain = [&](int depth, std::vector<std::int64_t> blocks, BlockKind kind) {
    imagenet(fmt::format("resnet{}", depth), {.blocks = std::move(blocks), .kind = kind},
             fmt::format("the ImageNet ResNet of {} layers", depth));
  };
  plain(18, {2, 2, 2, 2}, BlockKind::kPlain);
  plain(34, {3, 4, 6, 3}, BlockKind::kPlain);
  plain(50, {3, 4, 6, 3}, BlockKind::kBottleneck);
  plain(101, {3, 4, 23, 3}, BlockKind::kBottleneck);
  plain(152, {3, 8, 36, 3}, BlockKind::kBottleneck);
  // These two are of Zagoruyko and Komodakis (arXiv 1605.07146), section 3.4: twice as wide inside,
  // the blocks' ends as they are.
  imagenet("wide_resnet50_2", {.blocks = {3, 4, 6, 3}, .kind = BlockKind::kBottleneck, .inner = 2},
           "the ImageNet ResNet of 50 layers with bottlenecks twice as wide");
}

}  // namespace starling
