#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace starling::cpu {

/// What the pass over columns needs of its outputs, four at a time; those behind the last have
/// weights of 0.
struct ResizeColumns {
  std::int64_t width = 0;  ///< outputs
  /// Pairs of input pixels each: a loop that is as long for all is faster than one as short as it
  /// can be
  std::int64_t taps = 0;
  std::int64_t channels = 0;            ///< 3 or 4
  const std::int32_t* first = nullptr;  ///< of each output its first input pixel
  /// [width / 4][taps][4 outputs]: the weights of pixels 2t (lower 16 bits) and 2t + 1, which may
  /// be 0; four times each, one a channel.
  const std::int32_t* weights = nullptr;
  /// Numbers of any value that lie behind a row and 2 · taps pixels more
  static constexpr std::int64_t kBehind = 8;
};

/// The two passes of kernels/cpu/resize.h, and what stands before and after them.
struct ResizeKernels {
  /// out[i] = Σ_t weights[t] · rows[t · stride + i] of n bytes, in 1/64 of a grey level.
  void (*mix_rows)(const std::uint8_t* rows, std::int64_t stride, const std::int32_t* weights,
                   std::int64_t taps, std::int64_t n, std::int16_t* out);
  /// out[x] = Σ_t weight[x][t] · row[first[x] + t] for t < 2 · taps, rounded and clamped to a byte.
  void (*mix_columns)(const std::int16_t* row, const ResizeColumns& columns, std::uint8_t* out);
  /// Pixels of 4 bytes become pixels of 3.
  void (*narrow)(const std::uint8_t* from, std::int64_t pixels, std::uint8_t* out);
  /// Copies rows of some hundred bytes, for which memcpy() takes half as long again.
  void (*copy_rows)(const std::uint8_t* from, std::int64_t stride, std::int64_t bytes,
                    std::int64_t rows, std::uint8_t* out);
};

/// Two weights of 16 bits.
inline std::int32_t weight_pair(std::int32_t first, std::int32_t second) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(second) << 16 |
                                   (static_cast<std::uint32_t>(first) & 0xFFFFU));
}

/// The copy for this processor.
const ResizeKernels& resize_kernels();

}  // namespace starling::cpu
