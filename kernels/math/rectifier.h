#pragma once

#include <cmath>
#include <limits>

#include "core/host_device.h"
#include "core/operations/rectifier.h"

// The rectifier after a norm, and its gradient, for CPU and GPU.
namespace starling::math {

/// A Rectifier in the arithmetic type. Not used without a ReLU.
template <class T>
struct RectifierOf {
  T ceiling;
  T largest;  ///< largest value below the ceiling, where the gradient becomes 0; infinity: none

  STARLING_HD T value(T x) const {  // this order of operands keeps NaN
    const T positive = x < T(0) ? T(0) : x;
    return positive > ceiling ? ceiling : positive;
  }
  /// The gradient of the input, given the output y (or the input) and the output's gradient.
  STARLING_HD T gradient(T y, T dy) const { return (y > T(0)) & (y <= largest) ? dy : T(0); }
};
template <class T>
RectifierOf<T> rectifier_of(const Rectifier& rectifier) {
  const T highest = static_cast<T>(rectifier.ceiling);
  const bool none = highest == std::numeric_limits<T>::infinity();
  return {highest, none ? highest : std::nextafter(highest, T(0))};
}

}  // namespace starling::math
