#pragma once

#include <cstdint>
#include <optional>

#include "core/operations/accesses.h"
#include "core/operations/loss_terms.h"
#include "core/tensor.h"

// Losses of outputs against targets.
namespace starling {

/// x[N,C] (more dimensions: the last is C) against targets: int32 [N], numbers of classes that
/// stand for rows with a 1 in that place, or as many numbers as x, in fp32 (fp64 for fp64). `loss`
/// (a scalar like them) receives the SUM over rows, or over elements, times `scale`; dx (optional)
/// receives the gradient of that times `gradient_scale`. Arithmetic is fp64's, but of the cross
/// entropy with classes x's own, in one pass. `class_weights` (optional, fp64 [C], for those of a
/// softmax): each class's term counts so much. Where targets are numbers of classes, both results
/// are then divided by the mean weight of these classes, or 0 where that is 0: PyTorch's weighted
/// mean where `scale` is 1/N. A target that is `ignored` counts for nothing: its row has a weight
/// of 0, and of the others each one of 1 where classes have none. With `total` (fp64 scalar, of a
/// softmax's losses with numbers of classes) the sum of the rows' weights is added to it, and the
/// results are not divided. A row of the cross entropy with numbers of classes may have `classes`
/// numbers and padding behind them, whose numbers mean nothing, in x and dx. Of that cross entropy,
/// where classes have no weights, dx may be x.
struct TargetLoss {
  LossKind kind = LossKind::kCrossEntropy;
  Tensor x, targets, loss, dx;
  double parameter = 0.0;  ///< γ or δ
  double label_smoothing = 0.0, scale = 1.0, gradient_scale = 1.0;
  Tensor class_weights = {};
  std::optional<std::int32_t> ignored = {};
  Tensor total = {};
  std::int64_t classes = 0;  ///< 0: rows have no padding
  /// Rows have weights.
  bool weighted() const {
    return targets.dtype() == DType::kInt32 && (class_weights || ignored || total);
  }
  Accesses accesses() const {
    const bool padded = classes > 0;  // dx's padding stays as it is
    return Accesses()
        .read({x, targets, class_weights})
        .write({loss, padded ? Tensor() : dx})
        .change({total, padded ? dx : Tensor()});
  }
};

}  // namespace starling
