#pragma once

namespace starling {

/// How fast the pairs of a rotary position embedding turn: pair i of rows of D numbers by f =
/// base^(-2i/D) radians from one position to the next. For more positions than a model was first
/// trained on it is f / factor; where `context` (that first number of positions) is given, for slow
/// pairs alone, as Llama 3.1 has it: with wavelength 2π/f, f if context / wavelength is above
/// `high`, f / factor if below `low`, and a mean of both between.
struct RotaryFrequencies {
  RotaryFrequencies(double base_ = 10000.0) : base(base_) {}
  double base;
  double factor = 1.0, low = 1.0, high = 4.0;
  double context = 0.0;  ///< 0: all pairs by factor
};

}  // namespace starling
