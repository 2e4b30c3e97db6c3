#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "core/operations/rotary_frequencies.h"
#include "kernels/math/activations.h"

// The turns of a rotary position embedding (core/operations/attention.h).
namespace starling::math {

template <class R>
struct Turn {
  R cos, sin;
};

/// Radians that pair i of rows of `width` numbers turns by from one position to the next.
STARLING_HD double rotary_frequency(const RotaryFrequencies& all, std::int64_t i,
                                    std::int64_t width) {
  const double full = power(all.base, -2.0 * static_cast<double>(i) / static_cast<double>(width)),
               slow = full / all.factor;
  if (all.context == 0.0) return slow;
  const double turns = all.context * full / 6.283185307179586;  // within the first context
  if (turns > all.high) return full;
  if (turns < all.low) return slow;
  const double share = (turns - all.low) / (all.high - all.low);
  return (1.0 - share) * slow + share * full;
}
template <class R>
STARLING_HD Turn<R> rotary_turn(std::int64_t position, double frequency, bool inverse) {
  const double angle = static_cast<double>(position) * frequency;
  return {static_cast<R>(cosine(angle)), static_cast<R>(sine(inverse ? -angle : angle))};
}

}  // namespace starling::math
