#pragma once

namespace starling {

/// How fast the pairs of a rotary position embedding turn: pair i of rows of D numbers by f =
/// base^(-2i/D) radians from one position to the next. For more positions than a model was first
/// trained on it is f / factor. Llama 3.1 does so for slow pairs alone: where `context` (that first
/// number of positions) is given, a pair turns n = context · f / 2π times in it, and has
/// - f if n > high
/// - f / factor if n < low
/// - a linear interpolation in n of the two between
struct RotaryFrequencies {
  RotaryFrequencies(double base_ = 10000.0) : base(base_) {}
  double base;
  double factor = 1.0, low = 1.0, high = 4.0;
  double context = 0.0;  ///< 0: all pairs by factor
};

}  // namespace starling
