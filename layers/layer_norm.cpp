#include "layers/layer_norm.h"

#include "layers/builtin.h"
#include "layers/functions.h"

namespace starling {

Shape LayerNorm::build(const Shape& input) {
  if (input.rank() < 1) bad_shape(input, "at least one dimension");
  gamma_ = &add_parameter("weight", {input.back()}, Init::constant(1.0));
  beta_ = &add_parameter("bias", {input.back()}, Init::constant(0.0));
  return input;
}

Variable LayerNorm::compute(const Variable& x, Pass& pass) {
  return functions::layer_norm(x, *gamma_, *beta_, eps_, pass);
}

Shape RmsNorm::build(const Shape& input) {
  if (input.rank() < 1) bad_shape(input, "at least one dimension");
  weight_ = &add_parameter("weight", {input.back()}, Init::constant(1.0));
  return input;
}

Variable RmsNorm::compute(const Variable& x, Pass& pass) {
  return functions::rms_norm(x, *weight_, eps_, pass);
}

void builtin::add_layer_norm(LayerRegistry& registry) {
  registry.add(
      "rms_norm",
      [](ConfigSection& section) {
        return std::make_unique<RmsNorm>(
            section.number("eps", 1e-5, Range::positive(), "added to the mean square"));
      },
      "divides every sample by its root mean square over its last dimension");
  registry.add(
      "layer_norm",
      [](ConfigSection& section) {
        return std::make_unique<LayerNorm>(
            section.number("eps", 1e-5, Range::positive(), "added to the variance"));
      },
      "normalises every sample over its last dimension, every pixel of an image over its channels");
}

}  // namespace starling
