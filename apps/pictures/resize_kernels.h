#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace starling::cpu {

constexpr int kTapBits = 14;     ///< a weight of 1 is 2^14
constexpr int kBetweenBits = 6;  ///< between the passes a grey level is 2^6

/// The two passes of apps/pictures/resize.h.
struct ResizeKernels {
  /// out[i] = Σ_t weights[t] · rows[t · stride + i] of n bytes, in 1/64 of a grey level.
  void (*mix_rows)(const std::uint8_t* rows, std::int64_t stride, const std::int32_t* weights, std::int64_t taps, std::int64_t n,
                   std::int16_t* out);
  /// Pixels of 4: out[x] = Σ_t weights[x · most + t] · row[first[x] + t] for t < count[x], rounded and clamped to a byte. Two at a
  /// time: `most` is even, what lies behind the count's weights is 0, and behind the row lies a pixel more.
  void (*mix_columns)(const std::int16_t* row, const std::int32_t* first, const std::int32_t* count, const std::int32_t* weights,
                      std::int64_t most, std::int64_t width, std::uint8_t* out);
};

/// The copy for this processor.
const ResizeKernels& resize_kernels();

}  // namespace starling::cpu
