#include "layers/linear.h"

#include <cmath>

#include "core/error.h"
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

void Linear::adapt(const Adapter& adapter) {
  require(weight_ && !term_.a && adapter.rank > 0, "linear", "{} cannot be adapted", name());
  const std::int64_t in = weight_->shape[1];
  const Init uniform = Init::uniform(1.0 / std::sqrt(static_cast<double>(in)));
  term_ = {.a = &add_parameter("lora_A.weight", {adapter.rank, in}, uniform),
           .b = &add_parameter("lora_B.weight", {out_features_, adapter.rank}, Init::constant(0.0)),
           .scale = adapter.alpha / static_cast<double>(adapter.rank)};
  term_.a->in = term_.b->in = Parameter::In::kAdapter;
  dropout_ = adapter.dropout;
}

Variable Linear::compute(const Variable& x, Pass& pass) {
  if (!term_.a) return functions::linear(x, *weight_, bias_, pass);
  const bool drops = dropout_ > 0.0 && pass.training;
  return functions::linear(x, *weight_, bias_, term_,
                           drops ? functions::dropout(x, dropout_, pass) : Variable(), pass);
}

Variable Linear::forward_relu(const Variable& x, Pass& pass) {
  return shell(x, pass, [this](Values in, Pass& now) {
    return term_.a ? functions::relu(compute(in[0], now), now)
                   : functions::linear(in[0], *weight_, bias_, now, true);
  });
}

Variable Linear::forward_gelu(const Variable& x, Pass& pass) {
  return shell(x, pass, [this](Values in, Pass& now) {
    return term_.a ? functions::gelu(compute(in[0], now), now, functions::GeluForm::kTanh)
                   : functions::linear_gelu(in[0], *weight_, bias_, now);
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
