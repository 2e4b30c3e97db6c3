#include <utility>

#include "core/operations/convolutions.h"
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

using WeightInit = Conv2dOptions::WeightInit;

/// Kinds of block: two 3×3 convolutions; or 1×1, 3×3 with the stride, and 1×1 to four times the
/// width. If the shape changes, the shortcut is a 1×1 convolution with batch norm, or without
/// parameters (the paper's option A).
enum class BlockKind { kPlain, kBottleneck, kOptionA };

/// A residual network of He et al. 2015 (arXiv 1512.03385): a stem, stages of blocks, of which each
/// but the first halves the size and doubles the width, global average pooling, and a linear layer.
struct Plan {
  std::vector<std::int64_t> blocks;  ///< per stage
  BlockKind kind = BlockKind::kPlain;
  std::int64_t width = 64;  ///< of the stem and the first stage
  bool small_stem = false;  ///< 3×3 of stride 1; else 7×7 of stride 2 and max pooling
  WeightInit init = WeightInit::kKaimingNormalFanOut;
  Linear::WeightInit linear_init = Linear::WeightInit::kDefault;
  std::int64_t inner = 1;  ///< factor of the width of all but a bottleneck's last convolution
  bool blurs = false;      ///< blur before convolutions with a stride
};

/// Option A's shortcut.
class SubsamplePad : public Layer {
 public:
  SubsamplePad(std::int64_t stride, std::int64_t channels) : stride_(stride), channels_(channels) {}

 protected:
  Shape build(const Shape& input) override {
    return {(input[0] + stride_ - 1) / stride_, (input[1] + stride_ - 1) / stride_, channels_};
  }
  Variable compute(const Variable& x, Pass& pass) override {
    return functions::subsample_pad(x, stride_, channels_, pass);
  }

 private:
  std::int64_t stride_, channels_;
};

/// Adds a convolution from `inputs` channels with its batch norm, preceded by a blur if required.
/// FFCV's rule (libffcv/ffcv-imagenet, train_imagenet.py, use_blurpool): before every convolution
/// with a stride and 16 or more input channels. A 1×1 convolution reads only each stride-th pixel,
/// so only these are blurred, and the convolution has no stride.
void add_unit(Sequential& to, const Plan& plan, const std::string& conv, const std::string& norm,
              std::int64_t inputs, std::int64_t channels, std::int64_t kernel,
              std::int64_t stride) {
  if (plan.blurs && stride > 1 && inputs >= 16) {
    const std::int64_t step = kernel == 1 ? std::exchange(stride, 1) : 1;
    const Window2d window{.kernel = {3, 3}, .stride = {step, step}, .padding = {1, 1}};
    to.add(conv + ".blur", std::make_unique<Pool2d>(Pooling::kBlur, window));
  }
  to.add(conv, plain_convolution(channels, kernel, stride, 1, plan.init));
  to.add(norm, std::make_unique<BatchNorm>());
}

/// Adds a block and its last ReLU, and returns its number of channels.
std::int64_t add_block(Sequential& to, const Plan& plan, const std::string& name,
                       std::int64_t inputs, std::int64_t width, std::int64_t stride) {
  auto body = std::make_unique<Sequential>();
  std::int64_t channels = inputs;
  const auto add = [&](const std::string& number, std::int64_t outputs, std::int64_t kernel,
                       std::int64_t step) {
    if (number != "1") body->add(Activation::kRelu);
    add_unit(*body, plan, "conv" + number, "bn" + number, channels, outputs, kernel, step);
    channels = outputs;
  };
  if (plan.kind == BlockKind::kBottleneck) {
    add("1", plan.inner * width, 1, 1);
    add("2", plan.inner * width, 3, stride);
    add("3", 4 * width, 1, 1);
  } else {
    add("1", width, 3, stride);
    add("2", width, 3, 1);
  }
  std::unique_ptr<Sequential> shortcut;
  if (stride > 1 || channels != inputs) {
    shortcut = std::make_unique<Sequential>();
    if (plan.kind == BlockKind::kOptionA)
      shortcut->add(std::make_unique<SubsamplePad>(stride, channels));
    else
      add_unit(*shortcut, plan, "downsample.0", "downsample.1", inputs, channels, 1, stride);
  }
  to.add(name, std::make_unique<Residual>(std::move(body), "", std::move(shortcut)));
  to.add(Activation::kRelu);
  return channels;
}

std::unique_ptr<Layer> resnet(const Plan& plan, std::int64_t classes) {
  auto model = std::make_unique<ImageModel>();
  const bool small = plan.small_stem;
  model->add("conv1", plain_convolution(plan.width, small ? 3 : 7, small ? 1 : 2, 1, plan.init));
  model->add("bn1", std::make_unique<BatchNorm>());
  model->add(Activation::kRelu);
  if (!small) {
    const Window2d window{.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
    model->add(std::make_unique<Pool2d>(Pooling::kMax, window));
  }
  std::int64_t width = plan.width, channels = width;
  for (std::size_t stage = 0; stage < plan.blocks.size(); ++stage, width *= 2) {
    for (std::int64_t block = 0; block < plan.blocks[stage]; ++block) {
      const std::int64_t stride = stage > 0 && block == 0 ? 2 : 1;
      channels = add_block(*model, plan, fmt::format("layer{}.{}", stage + 1, block), channels,
                           width, stride);
    }
  }
  model->add(global_avg_pool());
  model->add("fc", std::make_unique<Linear>(classes, true, plan.linear_init));
  return model;
}

}  // namespace

void builtin::add_resnet(ModelRegistry& registry) {
  // 6n + 2 layers, n blocks a stage (section 4.2). Weights are kaiming normal (fan in), as in the
  // implementations whose accuracies are usually quoted.
  const auto read_blur = [](ConfigSection& section) {
    return section.boolean("blur_pool", false,
                           "blur with the 3×3 filter [1 2 1]⊗[1 2 1]/16 before every convolution "
                           "that has a stride and 16 input channels or more; adds no tensors");
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
          return resnet(own, site.num_classes);
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
          section.read("stem", own.small_stem, {{"imagenet", false}, {"cifar", true}},
                       "imagenet: 7×7 convolution of stride 2 and max pooling; cifar: 3×3 of "
                       "stride 1, for small images");
          own.blurs = read_blur(section);
          return resnet(own, site.num_classes);
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
  // Zagoruyko and Komodakis (arXiv 1605.07146), section 3.4: twice the inner width, with the
  // blocks' outputs unchanged.
  imagenet("wide_resnet50_2", {.blocks = {3, 4, 6, 3}, .kind = BlockKind::kBottleneck, .inner = 2},
           "the ImageNet ResNet of 50 layers with bottlenecks twice as wide");
}

}  // namespace starling
