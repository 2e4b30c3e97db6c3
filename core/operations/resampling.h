#pragma once

#include <array>
#include <cstdint>

#include "core/host_device.h"
#include "core/operations/accesses.h"
#include "core/tensor.h"

// Resizing of images: each pixel is a separable weighted sum.
namespace starling {

enum class Resampling : std::uint8_t {
  kNearest,   ///< pixel ⌊p / scale⌋
  kBilinear,  ///< of the two around (p + 1/2) / scale - 1/2, which stays within the image
  kAverage,   ///< the mean of pixels ⌊p·in / out⌋ … ⌈(p + 1)·in / out⌉ - 1
};

/// Pixels first … last with weights: `at_first` for the first, `rest` for each other one.
struct ResampleTaps {
  std::int32_t first = 0, last = 0;
  double at_first = 1.0, rest = 0.0;
  STARLING_HD double of(std::int64_t pixel) const { return pixel == first ? at_first : rest; }
};

/// Resizes one axis from `in` to `out` pixels.
struct ResampleAxis {
  Resampling kind = Resampling::kNearest;
  std::int64_t in = 1, out = 1;
  double scale = 1.0;  ///< for kNearest and kBilinear

  /// The input pixels of output pixel p.
  STARLING_HD ResampleTaps taps(std::int64_t p) const {
    const auto at = [&](std::int64_t pixel) {
      return static_cast<std::int32_t>(pixel < in ? pixel : in - 1);
    };
    if (kind == Resampling::kAverage) {
      const std::int32_t first = at(p * in / out), last = at(((p + 1) * in - 1) / out);
      const double share = 1.0 / static_cast<double>(last - first + 1);
      return {first, last, share, share};
    }
    const double half = kind == Resampling::kNearest ? 0.0 : 0.5;
    const double place = (static_cast<double>(p) + half) / scale - half;
    const std::int32_t first = place < 0.0 ? 0 : at(static_cast<std::int64_t>(place));
    const double beyond = place - static_cast<double>(first);
    if (kind == Resampling::kNearest || beyond <= 0.0 || first + 1 == in)
      return {first, first, 1.0, 0.0};
    return {first, first + 1, 1.0 - beyond, beyond};
  }
  struct PixelRange {
    std::int32_t first = 0, last = -1;
  };
  /// The output pixels that input pixel i contributes to.
  STARLING_HD PixelRange users_of(std::int64_t i) const {
    // Binary search: the first p for which the monotonic `reaches` holds.
    const auto search = [&](auto reaches) {
      std::int64_t low = 0, high = out;
      while (low < high) {
        const std::int64_t middle = (low + high) / 2;
        reaches(taps(middle)) ? high = middle : low = middle + 1;
      }
      return static_cast<std::int32_t>(low);
    };
    return {search([&](const ResampleTaps& t) { return t.last >= i; }),
            search([&](const ResampleTaps& t) { return t.first > i; }) - 1};
  }
};

/// Resizes x[N,H,W,C] to y[N,P,Q,C]; `transposed`: computes the gradient y of the input from that
/// of the result, x. The order of summation is fixed.
struct Resample {
  Resampling kind = Resampling::kNearest;
  Tensor x, y;
  std::array<double, 2> scale{1.0, 1.0};  ///< output / input size, of height and width
  bool transposed = false;

  /// Of height (0) or width (1).
  ResampleAxis axis(int i) const {
    const Tensor &from = transposed ? y : x, &to = transposed ? x : y;
    return {kind, from.shape()[i + 1], to.shape()[i + 1], scale[static_cast<std::size_t>(i)]};
  }
  Accesses accesses() const { return Accesses().read({x}).write({y}); }
};

}  // namespace starling
