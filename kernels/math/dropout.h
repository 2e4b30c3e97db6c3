#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "core/philox.h"

namespace starling::math {

/// The elements that a dropout keeps, of 4·group … 4·group + 3. Element i takes word i mod 4 of
/// Philox(key, counter high = counter, counter low = i div 4) as a number in [0, 1). It is kept
/// where that is >= p.
struct DropoutMask {
  bool keep[4];
};
STARLING_HD DropoutMask dropout_mask(std::uint64_t key, std::uint64_t counter, std::uint64_t group,
                                     float p) {
  const Philox4x32 bits = philox(key, group, counter);
  return {{uniform_float(bits.v[0]) >= p, uniform_float(bits.v[1]) >= p,
           uniform_float(bits.v[2]) >= p, uniform_float(bits.v[3]) >= p}};
}
/// Whether it keeps element `place`.
STARLING_HD bool dropout_keeps(std::uint64_t key, std::uint64_t counter, std::int64_t place,
                               float p) {
  const DropoutMask mask = dropout_mask(key, counter, static_cast<std::uint64_t>(place >> 2), p);
  // No index that is found at run time: on a GPU registers have none.
  const int lane = static_cast<int>(place & 3);
  return lane == 0   ? mask.keep[0]
         : lane == 1 ? mask.keep[1]
         : lane == 2 ? mask.keep[2]
                     : mask.keep[3];
}

}  // namespace starling::math
