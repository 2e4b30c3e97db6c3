#pragma once

#include <cstdint>

namespace starling {

/// Encodings of numbers in fewer bytes. Computed in fp32 (kernels/math/codec.h); fp64 is rounded to
/// fp32 first.
enum class Code : std::uint8_t {
  kNone,
  kBf16,     ///< rounded to nearest even
  kInt8,     ///< q·s with s = max|x| / 127 of each block
  kMinMax8,  ///< 256 levels between minimum and maximum of each block
  kInt4,     ///< q·s with s = max|x| / 7 of each block, two in a byte
};

}  // namespace starling
