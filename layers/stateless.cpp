#include "layers/stateless.h"

#include <fmt/format.h>

#include <array>

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
  // Checks an image of another size than at setup, which may be too small
  window_output(*this, x.shape().without_batch(), window_, x.shape().back());
  return functions::pool2d(x, kind_, window_, pass);
}

namespace {

void need_image(const FunctionLayer& layer, const Shape& input) {
  if (input.rank() != 3) layer.bad_shape(input, "an image H×W×C");
}

}  // namespace

std::unique_ptr<Layer> dropout_layer(double p) {
  return std::make_unique<FunctionLayer>(
      [p](const Variable& x, Pass& pass) { return functions::dropout(x, p, pass); });
}

std::unique_ptr<Layer> global_avg_pool() {
  return std::make_unique<FunctionLayer>(
      [](const Variable& x, Pass& pass) {
        return functions::mean(x, {1, 2}, false, pass);
      },
      [](const FunctionLayer& layer, const Shape& input) -> Shape {
        need_image(layer, input);
        return {input[2]};
      });
}

std::unique_ptr<Layer> flatten_layer() {
  return std::make_unique<FunctionLayer>(
      functions::flatten,
      [](const FunctionLayer&, const Shape& input) -> Shape { return {input.elements()}; });
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
  const auto function = [&](const char* name, const FunctionLayer::Function& of, const char* doc) {
    registry.add(
        name, [of](ConfigSection&) { return std::make_unique<FunctionLayer>(of); }, doc);
  };
  function("sigmoid", functions::sigmoid, "1 / (1 + e⁻ˣ)");
  function("tanh", functions::tanh, "the hyperbolic tangent");
  function("softplus", functions::softplus, "log(1 + eˣ), and x above 20");
  registry.add(
      "softmax",
      [](ConfigSection& section) {
        const auto dim = static_cast<int>(section.integer(
            "dim", -1, Range::closed(-Shape::kMaxRank, Shape::kMaxRank),
            "the dimension whose numbers add up to 1; 0 would be the batch, -1 is the last"));
        return std::make_unique<FunctionLayer>(
            [dim](const Variable& x, Pass& pass) { return functions::softmax(x, dim, pass); },
            [dim](const FunctionLayer& layer, const Shape& input) {
              const int rank = input.rank() + 1, d = dim < 0 ? dim + rank : dim;
              if (d < 1 || d >= rank) {
                layer.bad_shape(
                    input,
                    fmt::format("a sample that has dimension {} (0 is the batch, -1 the last)",
                                dim));
              }
              return input;
            });
      },
      "probabilities along a dimension");
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
      "adaptive_avg_pool2d",
      [](ConfigSection& section) {
        const std::vector<std::int64_t> size = section.required_pair(
            "output_size", Range::closed(1, 65536), "height and width of the result");
        const std::array<std::int64_t, 2> sides{size.at(0), size.at(1)};
        return std::make_unique<FunctionLayer>(
            [sides](const Variable& x, Pass& pass) {
              return functions::adaptive_avg_pool2d(x, sides, pass);
            },
            [sides](const FunctionLayer& layer, const Shape& input) -> Shape {
              need_image(layer, input);
              return {sides[0], sides[1], input[2]};
            });
      },
      "images of a given size, each pixel the mean of those that it covers");
  registry.add(
      "upsample",
      [](ConfigSection& section) {
        const double scale =
            section.required_number("scale_factor", {0.0, 1024.0, true, false},
                                    "so many times as large; sizes are rounded down");
        Resampling mode = Resampling::kNearest;
        section.read("mode", mode,
                     {{"nearest", Resampling::kNearest}, {"bilinear", Resampling::kBilinear}},
                     "bilinear is PyTorch's with align_corners false");
        return std::make_unique<FunctionLayer>(
            [=](const Variable& x, Pass& pass) {
              return functions::upsample(x, scale, mode, pass);
            },
            [scale](const FunctionLayer& layer, const Shape& input) {
              need_image(layer, input);
              Shape output = input;
              for (int d = 0; d < 2; ++d) {
                output[d] = static_cast<std::int64_t>(static_cast<double>(input[d]) * scale);
                if (output[d] < 1)
                  layer.bad_shape(input,
                                  fmt::format("an image that {} times leaves a pixel of", scale));
              }
              return output;
            });
      },
      "images of another size");
  registry.add(
      "global_avg_pool", [](ConfigSection&) { return global_avg_pool(); },
      "mean of every channel, as a vector");
  registry.add(
      "flatten", [](ConfigSection&) { return flatten_layer(); },
      "any shape to a vector, in the order C, H, W");
  registry.add(
      "dropout",
      [](ConfigSection& section) {
        return dropout_layer(
            section.number("p", 0.5, Range::half_open(0, 1), "probability that a value becomes 0"));
      },
      "random zeros in training");
  registry.add(
      "stochastic_depth",
      [](ConfigSection& section) {
        const double p = section.number(
            "p", 0.1, Range::half_open(0, 1),
            "probability that a sample becomes 0; the others are scaled by 1/(1 - p)");
        return std::make_unique<FunctionLayer>(
            [p](const Variable& x, Pass& pass) { return functions::stochastic_depth(x, p, pass); });
      },
      "whole samples become 0 in training; at the end of a residual's layers that leaves the block "
      "out");
}

}  // namespace starling
