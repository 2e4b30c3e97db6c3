#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace starling::cpu {

/// The two passes of apps/pictures/resize.h, and what stands before and after them.
struct ResizeKernels {
  /// out[i] = Σ_t weights[t] · rows[t · stride + i] of n bytes, in 1/64 of a grey level.
  void (*mix_rows)(const std::uint8_t* rows, std::int64_t stride, const std::int32_t* weights, std::int64_t taps, std::int64_t n,
                   std::int16_t* out);
  /// Pixels of 4: out[x] = Σ_t weight[x][t] · row[first[x] + t] for t < 2 · taps, rounded and clamped to a byte. pairs[x · taps + t / 2]
  /// holds the weights of t (lower 16 bits) and t + 1, which may be 0. Behind the row lie 2 · taps pixels more, of any value: a loop
  /// that is as long for all pixels is faster than one that is as short as it can be.
  void (*mix_columns)(const std::int16_t* row, const std::int32_t* first, const std::int32_t* pairs, std::int64_t taps, std::int64_t width,
                      std::uint8_t* out);
  /// Pixels of 3 bytes become pixels of 4, the fourth being anything, and the reverse.
  void (*widen)(const std::uint8_t* from, std::int64_t pixels, std::uint8_t* out);
  void (*narrow)(const std::uint8_t* from, std::int64_t pixels, std::uint8_t* out);
  /// Copies rows of some hundred bytes, for which memcpy() takes half as long again.
  void (*copy_rows)(const std::uint8_t* from, std::int64_t stride, std::int64_t bytes, std::int64_t rows, std::uint8_t* out);
};

/// Two weights of 16 bits.
inline std::int32_t weight_pair(std::int32_t first, std::int32_t second) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(second) << 16 | (static_cast<std::uint32_t>(first) & 0xFFFFU));
}

/// The copy for this processor.
const ResizeKernels& resize_kernels();

}  // namespace starling::cpu
