#include "layers/batch_norm.h"

#include "core/operations/pointwise.h"
#include "layers/builtin.h"

namespace starling {

Shape BatchNorm::build(const Shape& input) {
  if (input.rank() < 1) bad_shape(input, "at least one dimension");
  const Shape channels{input.back()};
  state_.gamma = &add_parameter("weight", channels, Init::constant(1.0));
  state_.gamma->trainable = trains_scale_;
  state_.beta = &add_parameter("bias", channels, Init::constant(0.0));
  state_.running_mean = &add_buffer("running_mean", channels, Init::constant(0.0));
  state_.running_var = &add_buffer("running_var", channels, Init::constant(1.0));
  state_.batches_tracked =
      &add_buffer("num_batches_tracked", {}, Init::constant(0.0), DType::kInt64);
  return input;
}

Variable BatchNorm::compute(const Variable& x, Pass& pass) {
  return functions::batch_norm(x, state_, Activation::kNone, {}, pass);
}

Variable BatchNorm::forward_fused(const Variable& x, Activation active, const Variable& residual,
                                  Pass& pass) {
  return shell(x, pass, [&](Values in, Pass& now) {
    return functions::batch_norm(in[0], state_, active, residual, now);
  });
}

void builtin::add_batch_norm(LayerRegistry& registry) {
  registry.add(
      "batch_norm",
      [](ConfigSection& section) {
        const double eps = section.number("eps", 1e-5, Range::positive(), "added to the variance");
        const double momentum = section.number("momentum", 0.1, Range::closed(0, 1),
                                               "weight of a batch in the running statistics");
        return std::make_unique<BatchNorm>(eps, momentum);
      },
      "normalises every channel over the batch");
}

}  // namespace starling
