#pragma once

#include <cmath>
#include <cstdint>

#include "core/host_device.h"

namespace starling {

/// Filters of Pillow's Image.resize: bilinear and bicubic (a = -0.5) widen with the step where a
/// picture shrinks (antialiasing).
enum class Interpolation : std::uint8_t { kNearest, kBilinear, kBicubic };

// The weights of resizing, for the CPU and a device alike: in double precision without fused
// multiply-add, so that both have the same bits.
namespace math {

constexpr int kTapBits = 14;  ///< a weight of 1 is 2^14
/// Between the passes, over rows and then over columns, a grey level is 2^6
constexpr int kBetweenBits = 6;
constexpr int kRowShift = kTapBits - kBetweenBits, kRowHalf = 1 << (kRowShift - 1);
constexpr int kColumnShift = kTapBits + kBetweenBits, kColumnHalf = 1 << (kColumnShift - 1);

/// The filter at a distance of x pixels.
STARLING_HD double filter_at(Interpolation interpolation, double x) {
  x = x < 0.0 ? -x : x;
  if (interpolation != Interpolation::kBicubic) return x < 1.0 ? 1.0 - x : 0.0;
  constexpr double a = -0.5;  // of Keys' cubic convolution
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
  return x < 2.0 ? (((x - 5.0) * x + 8.0) * x - 4.0) * a : 0.0;
}

/// How many pixels on either side the filter sees where `step` pixels become one.
STARLING_HD double filter_reach(Interpolation interpolation, double step) {
  return (interpolation == Interpolation::kBicubic ? 2.0 : 1.0) * (step > 1.0 ? step : 1.0);
}

/// Finds what output `i` is made of, where a line of `inputs` pixels is resized: each output takes
/// `step` of them, from `begin` on. Sets `first`, its first input, and weights[0 … count) in
/// 1/2^14, of sum 2^14. Returns count, at most `most`. Example: a line of 2 made to 4, bilinear:
/// output 1 takes 3/4 of input 0 and 1/4 of input 1.
template <class Weight>
STARLING_HD int resize_taps(std::int64_t inputs, double begin, double step, std::int64_t i,
                            Interpolation interpolation, int most, std::int32_t& first,
                            Weight* weights) {
  const double centre = begin + (static_cast<double>(i) + 0.5) * step;
  const auto within = [](double place, std::int64_t least, std::int64_t largest) {
    const auto whole = static_cast<std::int64_t>(::floor(place));
    return whole < least ? least : whole > largest ? largest : whole;
  };
  if (interpolation == Interpolation::kNearest) {
    first = static_cast<std::int32_t>(within(centre, 0, inputs - 1));
    weights[0] = static_cast<Weight>(1 << kTapBits);
    return 1;
  }
  const double widening = step > 1.0 ? step : 1.0, reach = filter_reach(interpolation, step);
  const std::int64_t begins = within(centre - reach + 0.5, 0, inputs - 1),
                     ends = within(centre + reach + 0.5, begins + 1, inputs);
  const int count = static_cast<int>(ends - begins < most ? ends - begins : most);
#if defined(__CUDA_ARCH__)
  constexpr int kKept = 0;  // a thread of a device has no quick memory for them
  double kept[1];
#else
  constexpr int kKept = 8;  // shares, of which more are computed again
  double kept[kKept];
#endif
  const auto share = [&](int t) {
    return filter_at(interpolation, (static_cast<double>(begins + t) - centre + 0.5) / widening);
  };
  first = static_cast<std::int32_t>(begins);
  double sum = 0.0;
  for (int t = 0; t < count; ++t) {
    const double own = share(t);
    if (t < kKept) kept[t] = own;
    sum += own;
  }
  if (sum == 0.0) {
    weights[0] = static_cast<Weight>(1 << kTapBits);
    return 1;
  }
  std::int32_t left = 1 << kTapBits;
  int largest = 0;
  double largest_share = kKept > 0 ? kept[0] : share(0);
  for (int t = 0; t < count; ++t) {
    const double own = t < kKept ? kept[t] : share(t);
    const auto weight = static_cast<std::int32_t>(::lround(own / sum * (1 << kTapBits)));
    weights[t] = static_cast<Weight>(weight);
    left -= weight;
    if (own > largest_share) largest = t, largest_share = own;
  }
  // The sum is exact, so that an even area keeps its level
  weights[largest] = static_cast<Weight>(weights[largest] + left);
  return count;
}

}  // namespace math
}  // namespace starling
