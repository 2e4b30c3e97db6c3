#pragma once

#include <cmath>
#include <cstdint>

#include "core/host_device.h"

// The kinds of losses, and their terms, for CPU and GPU. A new sum over elements is a kind and a
// line in element_loss(); a kind of softmax needs kernels.
namespace starling {

/// Losses as PyTorch defines them (`torch.nn.functional`).
enum class LossKind : std::uint8_t {
  kCrossEntropy,  ///< -Σ_c t_c·log softmax(x)_c of a row, t smoothed by `label_smoothing`
  /// -Σ_c t_c·(1 - p_c)^γ·log p_c of a row, p = softmax(x) (Lin et al., 2017, arXiv:1708.02002)
  kFocal,
  /// Of an element, binary_cross_entropy_with_logits: -t·log σ(x) - (1 - t)·log(1 - σ(x))
  kLogistic,
  kSquared,   ///< (x - t)²
  kAbsolute,  ///< |x - t|
  kHuber,     ///< (x - t)²/2 where |x - t| <= δ, δ·(|x - t| - δ/2) elsewhere
};
/// Whether the terms are those of a row's softmax; otherwise each element has a term.
STARLING_HD bool is_softmax(LossKind kind) {
  return kind == LossKind::kCrossEntropy || kind == LossKind::kFocal;
}

namespace math {

struct LossTerm {
  double value, slope;  ///< slope: the derivative by the term's variable
};

/// Loss of one element x with target t: PyTorch's binary_cross_entropy_with_logits.
STARLING_HD LossTerm logistic_loss(double x, double t) {
  const double power = ::exp(x < 0.0 ? x : -x);  // at most 1, so it cannot overflow
  const double sigmoid = x < 0.0 ? power / (1.0 + power) : 1.0 / (1.0 + power);
  return {(1.0 - t) * x + (x < 0.0 ? -x : 0.0) + ::log1p(power), sigmoid - t};
}
STARLING_HD LossTerm squared_loss(double x, double t) { return {(x - t) * (x - t), 2.0 * (x - t)}; }
/// 1 or -1; 0 and NaN are returned unchanged.
STARLING_HD double sign(double d) { return d > 0.0 ? 1.0 : d < 0.0 ? -1.0 : d; }
STARLING_HD LossTerm absolute_loss(double x, double t) { return {::fabs(x - t), sign(x - t)}; }
STARLING_HD LossTerm huber_loss(double x, double t, double delta) {
  const double d = x - t, size = ::fabs(d);
  if (size <= delta) return {0.5 * d * d, d};
  return {delta * (size - 0.5 * delta), delta * sign(d)};
}

/// Loss of one class, by log p: -t·(1 - p)^γ·log p. A γ of 0 is the cross entropy.
STARLING_HD LossTerm focal_loss(double log_p, double t, double gamma) {
  if (gamma == 0.0) return {-t * log_p, -t};
  // 1 - p, exact where p is nearly 1
  const double rest = -::expm1(log_p), power = ::pow(rest, gamma);
  const double slope = rest == 0.0 ? 0.0 : power * (gamma * ::exp(log_p) * log_p / rest - 1.0);
  return {-t * power * log_p, t * slope};
}

/// Loss of one element, for kinds that are not is_softmax().
STARLING_HD LossTerm element_loss(LossKind kind, double x, double t, double parameter) {
  switch (kind) {
    case LossKind::kLogistic: return logistic_loss(x, t);
    case LossKind::kSquared: return squared_loss(x, t);
    case LossKind::kAbsolute: return absolute_loss(x, t);
    case LossKind::kHuber: return huber_loss(x, t, parameter);
    case LossKind::kCrossEntropy:
    case LossKind::kFocal: break;
  }
  return {};
}

}  // namespace math
}  // namespace starling
