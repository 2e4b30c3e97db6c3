#include "layers/linear.h"

#include <cmath>

#include "layers/builtin.h"
#include "layers/functions.h"
#include "layers/window.h"

namespace starling {

Shape Linear::build(const Shape& input) {
  if (input.rank() < 1) bad_shape(input, "at least one dimension");
  const auto fan_in = static_cast<double>(input.back());
  const Init uniform = Init::uniform(1.0 / std::sqrt(fan_in));
  Given given{.weight = uniform, .bias = zero_bias_ ? Init::constant(0.0) : uniform};
  if (init_ == WeightInit::kKaimingNormal) given.weight = Init::normal(std::sqrt(2.0 / fan_in));
  if (given_) given = *given_;
  weight_ = &add_parameter("weight", {out_features_, input.back()}, given.weight, given.layout);
  if (has_bias_) bias_ = &add_parameter("bias", {out_features_}, given.bias);
  Shape output = input;
  output[output.rank() - 1] = out_features_;
  return output;
}

Variable Linear::compute(const Variable& x, Pass& pass) {
  return functions::linear(x, *weight_, bias_, pass);
}

Variable Linear::forward_relu(const Variable& x, Pass& pass) {
  return shell(x, pass, [this](Values in, Pass& now) {
    return functions::linear(in[0], *weight_, bias_, now, true);
  });
}

void builtin::add_linear(LayerRegistry& registry) {
  registry.add(
      "linear",
      [](ConfigSection& section) {
        const std::int64_t out_features = section.required_integer(
            "out_features", kSizeRange, "size of the last dimension of the output");
        const bool bias = section.boolean("bias", true, "add a learned vector");
        return std::make_unique<Linear>(out_features, bias);
      },
      "product of the last dimension, of every pixel's channels in an image, with a learned "
      "matrix");
}

}  // namespace starling
