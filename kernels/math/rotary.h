#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "kernels/math/activations.h"

// The turns of a rotary position embedding (core/operations/attention.h).
namespace starling::math {

template <class R>
struct Turn {
  R cos, sin;
};

/// Radians that pair i of rows of `width` numbers turns by from one position to the next.
STARLING_HD double rotary_frequency(double base, std::int64_t i, std::int64_t width) {
  return power(base, -2.0 * static_cast<double>(i) / static_cast<double>(width));
}
template <class R>
STARLING_HD Turn<R> rotary_turn(std::int64_t position, double frequency, bool inverse) {
  const double angle = static_cast<double>(position) * frequency;
  return {static_cast<R>(cosine(angle)), static_cast<R>(sine(inverse ? -angle : angle))};
}

}  // namespace starling::math
