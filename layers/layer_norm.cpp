#include "layers/layer_norm.h"

#include <fmt/format.h>

#include "layers/builtin.h"
#include "layers/functions.h"
#include "layers/window.h"

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

Shape GroupNorm::build(const Shape& input) {
  if (input.rank() < 1) bad_shape(input, "at least one dimension");
  const std::int64_t groups = groups_.value_or(input.back());
  if (input.back() % groups != 0)
    bad_shape(input, fmt::format("a number of channels that {} groups divide", groups));
  if (input.elements() == groups) bad_shape(input, "more than one number in a group");
  if (affine_) {
    gamma_ = &add_parameter("weight", {input.back()}, Init::constant(1.0));
    beta_ = &add_parameter("bias", {input.back()}, Init::constant(0.0));
  }
  return input;
}

Variable GroupNorm::compute(const Variable& x, Pass& pass) {
  return functions::group_norm(x, groups_.value_or(x.shape().back()), gamma_, beta_, eps_, pass);
}

void builtin::add_layer_norm(LayerRegistry& registry) {
  registry.add(
      "group_norm",
      [](ConfigSection& section) {
        const std::int64_t groups = section.required_integer(
            "num_groups", kSizeRange, "channels are normalised in so many groups");
        const double eps = section.number("eps", 1e-5, Range::positive(), "added to the variance");
        return std::make_unique<GroupNorm>(
            groups, eps, section.boolean("affine", true, "learn a factor and a constant"));
      },
      "normalises every sample over its pixels and groups of channels");
  registry.add(
      "instance_norm",
      [](ConfigSection& section) {
        const double eps = section.number("eps", 1e-5, Range::positive(), "added to the variance");
        return std::make_unique<GroupNorm>(
            std::nullopt, eps,
            section.boolean("affine", false, "learn a factor and a constant of every channel"));
      },
      "normalises every channel of every sample over its pixels");
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
