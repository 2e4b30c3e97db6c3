#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/host_device.h"

namespace starling::math {

// Arithmetic of the activations, shared by the CPU and GPUs. The float versions of exp and erf are
// branch-free so that loops over them vectorise; errors are given against the exact value.

/// e^x for float within 2 units in the last place; 0 below -87.3, infinity from 88.377 on (NaN
/// stays NaN).
STARLING_HD float exponential(float x) {
  // e^x = 2^n · e^r with |r| <= ln(2)/2; e^r by its Taylor series to the 7th power (relative error
  // 5e-9).
  float clamped = x < -87.3f ? -87.3f : x;
  clamped = clamped > 88.4f ? 88.4f : clamped;
  // 1.5 · 2^23: adding it rounds to an integer in the low bits
  constexpr float kMagic = 12582912.0f;
  const float shifted = clamped * 1.44269504088896341f + kMagic;
  const float n = shifted - kMagic;
  const float r = (clamped - n * 0.693145751953125f) - n * 1.42860682030941723e-6f;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // 2^n by its exponent; 2^128 is infinity. A product, since a sum of bits would make a number of a
  // GPU's NaN.
  const float power = std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) + 127u) << 23);
  return x < -87.3f ? 0.0f : p * power;
}
STARLING_HD double exponential(double x) { return ::exp(x); }

/// erf(x) for float with absolute error below 4e-7: x·P(x²)/Q(x²), fitted to |x| <= 3.95 (least
/// maximum of the relative error 2.1e-8).
STARLING_HD float error_function(float x) {
  float c = x < -3.95f ? -3.95f : x;
  c = c > 3.95f ? 3.95f : c;
  const float t = c * c;
  float p = 2.026054332e-06f;
  p = p * t + 2.846788610e-04f;
  p = p * t + 3.807600618e-03f;
  p = p * t + 5.287370312e-02f;
  p = p * t + 1.915366631e-01f;
  p = p * t + 1.128379144e+00f;
  float q = 3.783287364e-05f;
  q = q * t + 1.170597410e-03f;
  q = q * t + 1.505395449e-02f;
  q = q * t + 1.145540391e-01f;
  q = q * t + 5.030776257e-01f;
  q = q * t + 1.0f;
  const float e = c * p / q;
  // From 3.92 on, erf is 1 to the last place; exactly so, since GELU multiplies what is left by x.
  return x >= 3.92f ? 1.0f : x <= -3.92f ? -1.0f : e;
}
STARLING_HD double error_function(double x) { return ::erf(x); }

template <class T>
STARLING_HD T relu(T x) {
  return x <= T(0) ? T(0) : x;  // NaN stays NaN, so that divergence shows
}

/// min(max(x, 0), 6), PyTorch's; its gradient is 1 between the two bounds and 0 at and beyond them.
template <class T>
STARLING_HD T relu6(T x) {
  return x >= T(6) ? T(6) : relu(x);
}

/// x·Φ(x), Φ the normal distribution function (Hendrycks and Gimpel 2016), exact form.
template <class T>
STARLING_HD T gelu(T x) {
  return T(0.5) * x * (T(1) + error_function(x * T(0.70710678118654752440)));
}
/// Φ(x) + x·φ(x).
template <class T>
STARLING_HD T gelu_derivative(T x) {
  const T cdf = T(0.5) * (T(1) + error_function(x * T(0.70710678118654752440)));
  return cdf + x * T(0.39894228040143267794) * exponential(T(-0.5) * x * x);
}

template <class T>
STARLING_HD T sigmoid(T x) {
  return T(1) / (T(1) + exponential(-x));
}
/// x·sigmoid(x).
template <class T>
STARLING_HD T silu(T x) {
  return x * sigmoid(x);
}
template <class T>
STARLING_HD T silu_derivative(T x) {
  const T s = sigmoid(x);
  return s * (T(1) + x * (T(1) - s));
}

}  // namespace starling::math
