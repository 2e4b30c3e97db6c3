#pragma once

#include <cmath>
#include <numbers>

#include "core/random.h"

namespace starling {

/// The logarithm of a Gamma(alpha, 1) random number (Marsaglia and Tsang, "A simple method for
/// generating gamma variables", 2000); for alpha < 1 by Gamma(alpha) = Gamma(alpha + 1) ·
/// U^(1/alpha). The logarithm, since numbers for small alphas underflow. Each call of next()
/// returns a random word.
template <class Next>
double log_gamma_number(double alpha, Next next) {
  const auto uniform = [](const Philox4x32& bits, int half) {
    return uniform_double(bits.v[2 * half], bits.v[2 * half + 1]);
  };
  double shift = 0.0, shape = alpha;
  if (alpha < 1.0) {
    shift = std::log(1.0 - uniform(next(), 0)) / alpha;  // 1 - u is in (0, 1]
    shape = alpha + 1.0;
  }
  const double d = shape - 1.0 / 3.0, c = 1.0 / std::sqrt(9.0 * d);
  for (;;) {
    const Philox4x32 bits = next();
    const double normal = std::sqrt(-2.0 * std::log(1.0 - uniform(bits, 0))) *
                          std::cos(2.0 * std::numbers::pi * uniform(bits, 1));
    const double root = 1.0 + c * normal;
    const double u = 1.0 - uniform(next(), 0);
    if (root <= 0.0) continue;
    const double v = root * root * root;
    if (std::log(u) < 0.5 * normal * normal + d - d * v + d * std::log(v))
      return std::log(d * v) + shift;
  }
}

}  // namespace starling
