#pragma once

#include <cmath>
#include <limits>

#include "core/host_device.h"
#include "core/operations/rectifier.h"

// What a norm's rectifier does to a number, and to its gradient, on CPUs and GPUs.
namespace starling::math {

/// A Rectifier in the type of arithmetic. Without a ReLU nobody calls it.
template <class T>
struct RectifierOf {
  T ceiling;
  T largest;  ///< below the ceiling, at and beyond which no gradient passes; infinity passes

  STARLING_HD T value(T x) const {  // this order of operands keeps NaN
    const T positive = x < T(0) ? T(0) : x;
    return positive > ceiling ? ceiling : positive;
  }
  /// Of what has the value y, or x in its place, from the gradient of the value.
  STARLING_HD T gradient(T y, T dy) const { return (y > T(0)) & (y <= largest) ? dy : T(0); }
};
template <class T>
RectifierOf<T> rectifier_of(const Rectifier& rectifier) {
  const T highest = static_cast<T>(rectifier.ceiling);
  const bool none = highest == std::numeric_limits<T>::infinity();
  return {highest, none ? highest : std::nextafter(highest, T(0))};
}

}  // namespace starling::math
