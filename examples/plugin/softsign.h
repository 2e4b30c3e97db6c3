#pragma once

#include <cmath>

#include <starling/operation.h>

// A custom operation, y = x / (1 + |x|): softsign.cpp has the layer and the CPU's code, softsign.cu
// the GPU's. Both use the arithmetic defined here.
namespace mine {

template <class T>
STARLING_HD T softsign_of(T x) {
  return x / (1 + std::fabs(x));
}
/// dy/dx = 1 / (1 + |x|)².
template <class T>
STARLING_HD T softsign_slope(T x) {
  const T s = 1 + std::fabs(x);
  return 1 / (s * s);
}

/// y = softsign(x).
struct SoftsignForward {
  starling::Tensor x, y;
};
/// dx = dy · softsign'(x).
struct SoftsignBackward {
  starling::Tensor x, dy, dx;
};

/// The operations, to which each device's file adds its function.
inline starling::CustomOperation<SoftsignForward>& softsign_forward() {
  static starling::CustomOperation<SoftsignForward> operation("softsign_forward");
  return operation;
}
inline starling::CustomOperation<SoftsignBackward>& softsign_backward() {
  static starling::CustomOperation<SoftsignBackward> operation("softsign_backward");
  return operation;
}

/// Adds the layer "softsign".
void register_softsign();

}  // namespace mine
