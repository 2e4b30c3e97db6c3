#pragma once

#include <cstdint>
#include <optional>

#include "core/operations/accesses.h"
#include "core/operations/loss_terms.h"
#include "core/tensor.h"

// Losses of outputs against targets.
namespace starling {

/// Loss of x[N,C] (with more dimensions, the last is C) against targets: int32 [N] class indices
/// (equivalent to one-hot rows), or as many elements as x, in fp32 (fp64 for fp64). `loss` (a
/// scalar of that dtype) is set to `scale` times the SUM over rows or elements; dx (optional) to
/// `gradient_scale` times its gradient. Computed in fp64; the cross entropy with class indices in
/// x's arithmetic type, in one pass.
///
/// `class_weights` (optional, fp64 [C], for softmax losses): factors on the classes' terms. With
/// class indices both results are divided by the mean weight of the targets' classes (0 if that is
/// 0): with `scale` = 1/N this is PyTorch's weighted mean. Rows whose target is `ignored` have
/// weight 0, others 1 if there are no class weights. With `total` (fp64 scalar, for softmax losses
/// with class indices) the sum of the rows' weights is added to it, and the results are not
/// divided. Where x holds some rows of a batch, `batch_targets` are those of all its rows: the mean
/// weight is theirs.
///
/// For the cross entropy with class indices, rows of x and dx may consist of `classes` elements and
/// padding, which is ignored; and dx may be x if there are no class weights.
struct TargetLoss {
  LossKind kind = LossKind::kCrossEntropy;
  Tensor x, targets, loss, dx;
  double parameter = 0.0;  ///< γ or δ
  double label_smoothing = 0.0, scale = 1.0, gradient_scale = 1.0;
  Tensor class_weights = {};
  std::optional<std::int32_t> ignored = {};
  Tensor total = {}, batch_targets = {};
  std::int64_t classes = 0;  ///< 0: rows have no padding
  /// The targets whose weights count.
  const Tensor& weighed() const { return batch_targets ? batch_targets : targets; }
  /// Whether rows have weights.
  bool weighted() const {
    return targets.dtype() == DType::kInt32 && (class_weights || ignored || total);
  }
  Accesses accesses() const {
    const bool padded = classes > 0;  // dx's padding is not written
    return Accesses()
        .read({x, targets, class_weights, batch_targets})
        .write({loss, padded ? Tensor() : dx})
        .change({total, padded ? dx : Tensor()});
  }
};

}  // namespace starling
