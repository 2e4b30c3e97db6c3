#pragma once

#include <cstdint>

#include "core/operations/accesses.h"
#include "core/tensor.h"

// Losses, and what evaluation counts.
namespace starling {

/// How outputs are compared with targets, PyTorch's definitions (`torch.nn.functional`).
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

/// x[N,C] (more dimensions: the last is C) against targets: int32 [N], numbers of classes that
/// stand for rows with a 1 in that place, or as many numbers as x, in fp32 (fp64 for fp64). `loss`
/// (a scalar like them) receives the SUM over rows, or over elements, times `scale`; dx (optional)
/// receives the gradient of that times `gradient_scale`. Arithmetic is fp64's, but of the cross
/// entropy with classes x's own, in one pass.
struct TargetLoss {
  LossKind kind = LossKind::kCrossEntropy;
  Tensor x, targets, loss, dx;
  double parameter = 0.0;  ///< γ or δ
  double label_smoothing = 0.0, scale = 1.0, gradient_scale = 1.0;
  Accesses accesses() const { return Accesses().read({x, targets}).write({loss, dx}); }
};

/// Adds into counts (fp64 [C, C + 1], on the device) one for each row of logits [N,C]: in the row
/// of its label (int32 [N]), in the column of the largest logit (the first of equal ones), or in
/// the last column where a logit is NaN.
struct ConfusionCounts {
  Tensor logits, labels, counts;
  Accesses accesses() const { return Accesses().read({logits, labels}).change({counts}); }
};

/// Adds into totals (fp64 [4], on the device): sum of the plain losses, samples whose label's logit
/// is the largest (first index on ties), samples whose label is among the 5 largest, samples
/// counted.
struct ClassificationMetrics {
  Tensor logits, labels, totals;
  Accesses accesses() const { return Accesses().read({logits, labels}).change({totals}); }
};

}  // namespace starling
