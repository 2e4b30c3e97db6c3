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

/// norm → ReLU → 3×3 convolution, twice, with dropout before the second convolution. The shortcut
/// is x; if the number of channels changes, it is a 1×1 convolution of the first ReLU's output.
std::unique_ptr<Layer> preactivation_block(std::int64_t inputs, std::int64_t width,
                                           std::int64_t stride, double dropout) {
  auto block = std::make_unique<Sequential>(), body = std::make_unique<Sequential>();
  Sequential& first = inputs == width ? *body : *block;
  first.add("bn1", std::make_unique<BatchNorm>());
  first.add(Activation::kRelu);
  body->add("conv1", plain_convolution(width, 3, stride));
  body->add("bn2", std::make_unique<BatchNorm>());
  body->add(Activation::kRelu);
  body->add(dropout_layer(dropout));
  body->add("conv2", plain_convolution(width, 3, 1));
  std::unique_ptr<Sequential> shortcut;
  if (inputs != width) {
    shortcut = std::make_unique<Sequential>();
    shortcut->add("convShortcut", plain_convolution(width, 1, stride));
  }
  block->add("", std::make_unique<Residual>(std::move(body), "", std::move(shortcut)));
  block->set_block();
  return block;
}

/// The wide residual networks of Zagoruyko and Komodakis 2016 (arXiv 1605.07146), WRN-depth-width:
/// three groups of (depth - 4)/6 blocks with 16, 32 and 64 times `width` channels. Tensors have the
/// names of the usual PyTorch port (block1.layer.0.convShortcut).
std::unique_ptr<Layer> wide_resnet(std::int64_t depth, std::int64_t width, double dropout,
                                   std::int64_t classes) {
  auto model = std::make_unique<ImageModel>();
  model->add("conv1", plain_convolution(16, 3, 1));
  std::int64_t channels = 16;
  for (std::int64_t group = 0; group < 3; ++group) {
    for (std::int64_t block = 0; block < (depth - 4) / 6; ++block) {
      const std::int64_t stride = group > 0 && block == 0 ? 2 : 1;
      const std::int64_t outputs = (16 << group) * width;
      model->add(fmt::format("block{}.layer.{}", group + 1, block),
                 preactivation_block(std::exchange(channels, outputs), outputs, stride, dropout));
    }
  }
  model->add("bn1", std::make_unique<BatchNorm>());
  model->add(Activation::kRelu);
  model->add(global_avg_pool());
  model->add("fc", std::make_unique<Linear>(classes, true, Linear::WeightInit::kDefault, true));
  return model;
}

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
        return wide_resnet(depth, width, dropout, site.num_classes);
      },
      "the CIFAR wide ResNet, WRN-depth-width, with norms before convolutions");
}

}  // namespace starling
