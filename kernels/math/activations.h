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
  // 1.5 · 2^23: adding it rounds to an integer in the low bits. There n is kept to what exponents
  // have: of integers that is one instruction, and compilers do not split the loop by it.
  constexpr float kMagic = 12582912.0f;
  constexpr auto kZero = std::bit_cast<std::int32_t>(kMagic);
  auto shifted = std::bit_cast<std::int32_t>(x * 1.44269504088896341f + kMagic);
  shifted = shifted < kZero - 127 ? kZero - 127 : shifted;
  shifted = shifted > kZero + 128 ? kZero + 128 : shifted;
  const float n = std::bit_cast<float>(shifted) - kMagic;
  const float r = (x - n * 0.693145751953125f) - n * 1.42860682030941723e-6f;
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
  const float power = std::bit_cast<float>((static_cast<std::uint32_t>(shifted) + 127u) << 23);
  return x < -87.3f ? 0.0f : p * power;
}
STARLING_HD double exponential(double x) { return ::exp(x); }

STARLING_HD float absolute(float x) { return ::fabsf(x); }
STARLING_HD double absolute(double x) { return ::fabs(x); }

/// a / b.
STARLING_HD float quotient(float a, float b) { return a / b; }
STARLING_HD double quotient(double a, double b) { return a / b; }

/// erf(x) for float with absolute error below 4e-7: x·P(x²)/Q(x²), fitted to |x| <= 3.95 (least
/// maximum of the relative error 2.1e-8).
template <class T>
STARLING_HD T error_function_of(T x) {
  const T t = x * x;
  T p = T(2.026054332e-06f);
  p = p * t + T(2.846788610e-04f);
  p = p * t + T(3.807600618e-03f);
  p = p * t + T(5.287370312e-02f);
  p = p * t + T(1.915366631e-01f);
  p = p * t + T(1.128379144e+00f);
  T q = T(3.783287364e-05f);
  q = q * t + T(1.170597410e-03f);
  q = q * t + T(1.505395449e-02f);
  q = q * t + T(1.145540391e-01f);
  q = q * t + T(5.030776257e-01f);
  q = q * t + T(1.0f);
  // From 3.92 on, erf is 1 to the last place; exactly so, since GELU multiplies what is left by x.
  return absolute(x) >= T(3.92f) ? (x < T(0) ? T(-1) : T(1)) : quotient(x * p, q);
}
STARLING_HD float error_function(float x) { return error_function_of(x); }
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

STARLING_HD float square_root(float x) { return ::sqrtf(x); }
STARLING_HD double square_root(double x) { return ::sqrt(x); }
STARLING_HD float logarithm(float x) { return ::logf(x); }
STARLING_HD double logarithm(double x) { return ::log(x); }
STARLING_HD float logarithm1p(float x) { return ::log1pf(x); }
STARLING_HD double logarithm1p(double x) { return ::log1p(x); }
/// sin(x + quarters·π/2) for double. x is reduced to a quarter turn around 0 by three parts of π/2,
/// then the polynomials of fdlibm's __kernel_sin and __kernel_cos take it: about 1 unit in the last
/// place up to 10¹², NaN beyond 4·10¹⁸. A GPU's own functions keep an array for large x.
STARLING_HD double sine_of_turned(double x, std::int64_t quarters) {
  const double turns = ::rint(x * 0.63661977236758134308);
  double r = ::fma(-turns, 1.5707963267948966192, x);
  r = ::fma(-turns, 6.123233995736766036e-17, r);
  r = ::fma(-turns, -1.4973849048591833e-33, r);
  const double z = r * r;
  double s = 1.58969099521155010221e-10;
  s = s * z - 2.50507602534068634195e-08;
  s = s * z + 2.75573137070700676789e-06;
  s = s * z - 1.98412698298579493134e-04;
  s = s * z + 8.33333333332248946124e-03;
  s = s * z - 1.66666666666666324348e-01;
  s = r + r * z * s;
  double c = -1.13596475577881948265e-11;
  c = c * z + 2.08757232129817482790e-09;
  c = c * z - 2.75573143513906633035e-07;
  c = c * z + 2.48015872894767294178e-05;
  c = c * z - 1.38888888888741095749e-03;
  c = c * z + 4.16666666666666019037e-02;
  c = 1.0 - 0.5 * z + z * z * c;
  const bool counts = turns < 4e18 && turns > -4e18;
  const std::int64_t quarter = (counts ? static_cast<std::int64_t>(turns) : 0) + quarters;
  const double value = quarter & 1 ? c : s;
  return counts ? (quarter & 2 ? -value : value) : std::numeric_limits<double>::quiet_NaN();
}
STARLING_HD double sine(double x) { return sine_of_turned(x, 0); }
STARLING_HD double cosine(double x) { return sine_of_turned(x, 1); }
// Of fp32 within half a unit in the last place.
STARLING_HD float sine(float x) { return static_cast<float>(sine_of_turned(x, 0)); }
STARLING_HD float cosine(float x) { return static_cast<float>(sine_of_turned(x, 1)); }
STARLING_HD float power(float x, float y) { return ::powf(x, y); }
STARLING_HD double power(double x, double y) { return ::pow(x, y); }

/// 2/√π · e^(-x²).
template <class T>
STARLING_HD T erf_derivative(T x) {
  return T(1.12837916709551257390) * exponential(-x * x);
}

/// tanh for float within 4 units in the last place: of small x, where 1 - 2 / (e^2x + 1) cancels,
/// by an odd polynomial, whose coefficients are those of Cephes' tanhf (S. Moshier).
STARLING_HD float tangent(float x) {
  const float t = x * x;
  float p = -5.70498872745e-3f;
  p = p * t + 2.06390887954e-2f;
  p = p * t - 5.37397155531e-2f;
  p = p * t + 1.33314422036e-1f;
  p = p * t - 3.33332819422e-1f;
  const float small = x + x * t * p, large = 1.0f - 2.0f / (exponential(2.0f * absolute(x)) + 1.0f);
  return t < 0.390625f ? small : x < 0.0f ? -large : large;
}
STARLING_HD double tangent(double x) { return ::tanh(x); }

/// log(1 + eˣ), and x from 20 on, as PyTorch's.
template <class T>
STARLING_HD T softplus(T x) {
  return x > T(20) ? x : logarithm1p(exponential(x));
}

/// d xʸ/dx = y·x^(y-1), 0 where y is 0.
template <class T>
STARLING_HD T power_slope(T x, T y) {
  return y == T(0) ? T(0) : y * power(x, y - T(1));
}
/// d xʸ/dy = xʸ·log x, 0 where x is 0 and y is not negative.
template <class T>
STARLING_HD T power_log(T x, T y) {
  return (x == T(0)) & (y >= T(0)) ? T(0) : power(x, y) * logarithm(x);
}

template <class T>
STARLING_HD T sigmoid(T x) {
  return quotient(T(1), T(1) + exponential(-x));
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

/// GELU by tanh: x/2 · (1 + tanh(u/2)) with u = √(8/π) · (x + 0.044715·x³), as GPT-2's. That is
/// x·sigmoid(u), whose relative error stays small where the tanh is near -1.
template <class T>
STARLING_HD T gelu_tanh(T x) {
  return x * sigmoid(T(1.59576912160573071176) * (x + T(0.044715) * x * x * x));
}
template <class T>
STARLING_HD T gelu_tanh_derivative(T x) {
  const T s = sigmoid(T(1.59576912160573071176) * (x + T(0.044715) * x * x * x));
  return s + x * s * (T(1) - s) * T(1.59576912160573071176) * (T(1) + T(0.134145) * x * x);
}

}  // namespace starling::math
