#pragma once

#include <algorithm>
#include <cmath>

#include <starling/functions.h>
#include <starling/layer.h>

namespace mine {

/// Squeeze and excite (arXiv 1709.01507): channels are scaled by what their means say.
class Gate final : public starling::Layer {
  starling::Shape build(const starling::Shape& input) override {
    if (input.rank() != 3) bad_shape(input, "an image H×W×C");
    const std::int64_t channels = input[2], few = std::max<std::int64_t>(1, channels / 4);
    const auto init = starling::Init::uniform(1 / std::sqrt(static_cast<double>(channels)));
    down_ = &add_parameter("down", {few, channels}, init);
    up_ = &add_parameter("up", {channels, few}, init);
    return input;
  }
  starling::Variable compute(const starling::Variable& x, starling::Pass& pass) override {
    namespace f = starling::functions;
    const auto few = f::linear(f::mean(x, {1, 2}, true, pass), *down_, nullptr, pass, true);
    return f::multiply(x, f::sigmoid(f::linear(few, *up_, nullptr, pass), pass), pass);
  }
  starling::Parameter *down_ = nullptr, *up_ = nullptr;
};

}  // namespace mine
