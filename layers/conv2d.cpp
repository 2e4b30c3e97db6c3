#include "layers/conv2d.h"

#include <algorithm>
#include <cmath>

#include "core/operations/convolutions.h"
#include "layers/builtin.h"
#include "layers/functions.h"
#include "layers/window.h"

namespace starling {

Shape Conv2d::build(const Shape& input) {
  const Window2d& window = options_.window;
  if (input.rank() != 3) bad_shape(input, "an image H×W×C");
  const std::int64_t channels = input[2];
  if (channels % window.groups != 0) {
    bad_shape(input, fmt::format("a number of channels that {} groups divide", window.groups));
  }
  const Shape output = window_output(*this, input, window, options_.out_channels);

  const std::int64_t pixels = window.kernel[0] * window.kernel[1];
  const std::int64_t group_channels = channels / window.groups;
  const auto fan_in = static_cast<double>(pixels * group_channels);
  const auto fan_out = static_cast<double>(pixels * options_.out_channels);
  Init init = Init::uniform(1.0 / std::sqrt(fan_in));
  // Kaiming normal (He et al. 2015, arXiv 1502.01852) for ReLU: gain sqrt(2).
  if (options_.init == Conv2dOptions::WeightInit::kKaimingNormalFanIn)
    init = Init::normal(std::sqrt(2.0 / fan_in));
  if (options_.init == Conv2dOptions::WeightInit::kKaimingNormalFanOut)
    init = Init::normal(std::sqrt(2.0 / fan_out));
  if (options_.init == Conv2dOptions::WeightInit::kNormalFanIn)
    init = Init::normal(std::sqrt(1.0 / fan_in));
  if (options_.init == Conv2dOptions::WeightInit::kNormal002) init = Init::normal(0.02);
  weight_ = &add_parameter(
      "weight", {options_.out_channels, window.kernel[0], window.kernel[1], group_channels}, init,
      TensorLayout::kConvWeight);
  const Init bias_init =
      options_.zero_bias ? Init::constant(0.0) : Init::uniform(1.0 / std::sqrt(fan_in));
  if (options_.bias) bias_ = &add_parameter("bias", {options_.out_channels}, bias_init);
  return output;
}

Variable Conv2d::compute(const Variable& x, Pass& pass) {
  // Checks an image of another size than at setup, which may be too small
  window_output(*this, x.shape().without_batch(), options_.window, options_.out_channels);
  return functions::conv2d(x, *weight_, bias_, options_.window, pass);
}

void Conv2d::begin_values(const FirstSamples&) {
  if (!options_.dirac) return;
  change_values(*weight_, [&](std::vector<double>& weight) {
    const std::int64_t inputs = weight_->shape[3], row = weight_->shape[2] * inputs,
                       filter = weight_->shape[1] * row;
    const std::int64_t centre = weight_->shape[1] / 2 * row + weight_->shape[2] / 2 * inputs;
    for (std::int64_t o = 0; o < std::min(weight_->shape[0], inputs); ++o) {
      std::fill_n(weight.begin() + o * filter, filter, 0.0);
      weight[static_cast<std::size_t>(o * filter + centre + o)] = 1.0;
    }
  });
}

Shape ConvTranspose2d::build(const Shape& input) {
  const Window2d& window = options_.window;
  if (input.rank() != 3) bad_shape(input, "an image H×W×C");
  if (input[2] % window.groups != 0)
    bad_shape(input, fmt::format("a number of channels that {} groups divide", window.groups));
  const std::int64_t outputs = options_.out_channels / window.groups;
  // PyTorch's default, whose fan_in is that of the corresponding convolution.
  const Init init = Init::uniform(
      1.0 / std::sqrt(static_cast<double>(window.kernel[0] * window.kernel[1] * outputs)));
  weight_ = &add_parameter("weight", {input[2], window.kernel[0], window.kernel[1], outputs}, init,
                           TensorLayout::kConvWeight);
  if (options_.bias) bias_ = &add_parameter("bias", {options_.out_channels}, init);
  const std::array<std::int64_t, 2> size =
      transposed_output({input[0], input[1]}, window, output_padding_);
  if (size[0] < 1 || size[1] < 1)
    bad_shape(input, fmt::format("an image that becomes larger than {}×{}", size[0], size[1]));
  return {size[0], size[1], options_.out_channels};
}

Variable ConvTranspose2d::compute(const Variable& x, Pass& pass) {
  return functions::conv_transpose2d(x, *weight_, bias_, options_.window, output_padding_, pass);
}

namespace {

Conv2dOptions read_convolution(ConfigSection& section) {
  Conv2dOptions options;
  options.out_channels =
      section.required_integer("out_channels", kSizeRange, "channels of the output");
  options.window = read_window(section, WindowKeys::kConvolution);
  section.read("bias", options.bias, "add a learned constant to every channel");
  if (options.out_channels % options.window.groups != 0) {
    section.error("groups", "{} groups do not divide {} output channels", options.window.groups,
                  options.out_channels);
  }
  return options;
}

}  // namespace

void builtin::add_conv2d(LayerRegistry& registry) {
  registry.add(
      "conv2d",
      [](ConfigSection& section) { return std::make_unique<Conv2d>(read_convolution(section)); },
      "2-D convolution");
  registry.add(
      "conv_transpose2d",
      [](ConfigSection& section) {
        const Conv2dOptions options = read_convolution(section);
        const std::vector<std::int64_t> more =
            section.pair("output_padding", {0, 0}, Range::closed(0, 1024),
                         "pixels more at the bottom and the right; below the stride");
        for (std::size_t axis = 0; axis < 2; ++axis) {
          if (more.at(axis) >= options.window.stride[axis])
            section.error("output_padding", "found {}, which must be below the stride, {}",
                          more.at(axis), options.window.stride[axis]);
        }
        return std::make_unique<ConvTranspose2d>(
            options, std::array<std::int64_t, 2>{more.at(0), more.at(1)});
      },
      "transposed 2-D convolution: images become larger by the stride");
}

}  // namespace starling
