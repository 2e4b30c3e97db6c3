#include "layers/stateless.h"

#include "core/operations/convolutions.h"
#include "core/operations/pointwise.h"
#include "layers/builtin.h"
#include "layers/window.h"

namespace starling {

Shape Pool2d::build(const Shape& input) {
  if (input.rank() != 3) bad_shape(input, "an image H×W×C");
  return window_output(*this, input, window_, input[2]);
}

Variable Pool2d::compute(const Variable& x, Pass& pass) {
  // An image of another size may be too small
  window_output(*this, x.shape().without_batch(), window_, x.shape().back());
  return functions::pool2d(x, kind_, window_, pass);
}

Shape GlobalAvgPool::build(const Shape& input) {
  if (input.rank() != 3) bad_shape(input, "an image H×W×C");
  return {input[2]};
}

void builtin::add_stateless(LayerRegistry& registry) {
  const auto activation = [&](const char* name, Activation kind, const char* doc) {
    registry.add(
        name, [kind](ConfigSection&) { return std::make_unique<ActivationLayer>(kind); }, doc);
  };
  activation("relu", Activation::kRelu, "max(0, x)");
  activation("relu6", Activation::kRelu6, "min(max(0, x), 6)");
  activation("gelu", Activation::kGelu,
             "the exact Gaussian error linear unit, x·Φ(x) (arXiv 1606.08415)");
  activation("silu", Activation::kSilu, "x · sigmoid(x)");
  const auto pooling = [&](const char* name, Pooling kind, const char* doc) {
    registry.add(
        name,
        [kind](ConfigSection& section) {
          return std::make_unique<Pool2d>(kind, read_window(section, WindowKeys::kPooling));
        },
        doc);
  };
  pooling("max_pool2d", Pooling::kMax, "largest value of every window");
  pooling("avg_pool2d", Pooling::kAverage, "mean of every window, padding counted as zeros");
  registry.add(
      "blur_pool2d",
      [](ConfigSection& section) {
        return std::make_unique<Pool2d>(Pooling::kBlur, read_window(section, WindowKeys::kBlur));
      },
      "every window weighted by the binomial filter, [1 2 1]⊗[1 2 1]/16 for 3×3; padding counts as "
      "zeros");
  registry.add(
      "global_avg_pool", [](ConfigSection&) { return std::make_unique<GlobalAvgPool>(); },
      "mean of every channel, as a vector");
  registry.add(
      "flatten", [](ConfigSection&) { return std::make_unique<Flatten>(); },
      "any shape to a vector, in the order C, H, W");
  registry.add(
      "dropout",
      [](ConfigSection& section) {
        return std::make_unique<DropoutLayer>(
            section.number("p", 0.5, Range::half_open(0, 1), "probability that a value becomes 0"));
      },
      "random zeros in training");
  registry.add(
      "stochastic_depth",
      [](ConfigSection& section) {
        const double p = section.number(
            "p", 0.1, Range::half_open(0, 1),
            "probability that a sample becomes 0; the others are scaled by 1/(1 - p)");
        return std::make_unique<DropoutLayer>(p, true);
      },
      "whole samples become 0 in training; at the end of a residual's layers that leaves the block "
      "out");
}

}  // namespace starling
