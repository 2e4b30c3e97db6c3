#include "layers/layer_scale.h"

#include "layers/builtin.h"
#include "layers/functions.h"

namespace starling {

Shape LayerScale::build(const Shape& input) {
  if (input.rank() < 1) bad_shape(input, "at least one dimension");
  const TensorLayout layout = input.rank() == 3 ? TensorLayout::kImageScale : TensorLayout::kPlain;
  scale_ = &add_parameter(tensor_, {input.back()}, Init::constant(initial_), layout);
  return input;
}

Variable LayerScale::compute(const Variable& x, Pass& pass) {
  return functions::layer_scale(x, *scale_, {}, pass);
}

Variable LayerScale::forward_residual(const Variable& x, const Variable& residual, Pass& pass) {
  return shell(x, pass, [&](Values in, Pass& now) {
    return functions::layer_scale(in[0], *scale_, residual, now);
  });
}

void builtin::add_layer_scale(LayerRegistry& registry) {
  registry.add(
      "layer_scale",
      [](ConfigSection& section) {
        return std::make_unique<LayerScale>(
            section.number("init", 1e-6, Range::any(), "initial factor of every channel"));
      },
      "a learned factor of every channel; at the end of a residual's layers");
}

}  // namespace starling
