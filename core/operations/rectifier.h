#pragma once

#include <limits>

// What a norm ends with. Nothing here but constants: the files that are compiled for each
// instruction set include it.
namespace starling {

inline constexpr double kNoCeiling = std::numeric_limits<double>::infinity();
/// What a norm ends with: nothing, or a ReLU, min(max(x, 0), ceiling), whose gradient is masked by
/// 0 < y < ceiling. 6 makes it ReLU6. What it does to a number is in kernels/math/rectifier.h.
struct Rectifier {
  bool relu = false;
  double ceiling = kNoCeiling;
};

}  // namespace starling
