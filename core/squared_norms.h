#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"

namespace starling {

/// What a backend may be as well: one that sums the squares of many tensors in a few calls of the
/// device, where SquaredDistance takes one or more for each.
class SquaredNorms {
 public:
  /// totals[first + i] (fp64) = Σ x[i]², with the bits of a SquaredDistance of each alone onto 0.
  /// The tensors are all fp32 or all fp64.
  virtual void squared_norms(std::span<const Tensor> x, const Tensor& totals,
                             std::int64_t first) = 0;

 protected:
  ~SquaredNorms() = default;
};

}  // namespace starling
