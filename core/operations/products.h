#pragma once

#include "core/operations/accesses.h"
#include "core/tensor.h"

// Matrix products, and sums over rows.
namespace starling {

/// c[M,N] = op(a) · op(b) (+ bias[N], optional, added to each row), then ReLU if `relu` (not with
/// `accumulate`; NaN stays NaN); op transposes where asked. For low-precision a and b, c may be
/// fp32 or of their dtype.
struct Matmul {
  Tensor a, b, bias, c;
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;
  bool relu = false;
  Accesses accesses() const {
    return Accesses().read({a, b, bias}).output(accumulate, {c}).multiplies(a, c);
  }
};

/// y[C] = Σ over rows of x[R,C].
struct SumRows {
  Tensor x, y;
  bool accumulate = false;
  Accesses accesses() const { return Accesses().read({x}).output(accumulate, {y}); }
};

}  // namespace starling
