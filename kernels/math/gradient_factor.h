#pragma once

#include <cmath>

#include "core/host_device.h"

namespace starling::math {

/// Result of GradientControl; see core/operations/updates.h.
struct GradientFactor {
  double factor = 1.0, skip = 0.0;
};
/// Makes the factor from the sum of the gradients' squares; the norm is scale times its root.
STARLING_HD GradientFactor gradient_factor(double sum_of_squares, double scale, double clip,
                                           bool check_finite) {
  GradientFactor result;
  const double norm = scale * ::sqrt(sum_of_squares);
  if (clip > 0.0) {
    const double factor = clip / (norm + 1e-6);
    // A NaN norm leaves the NaN gradient as it is, to be noticed
    result.factor = factor < 1.0 ? factor : 1.0;
  }
  result.skip = check_finite && !std::isfinite(norm) ? 1.0 : 0.0;
  return result;
}

}  // namespace starling::math
