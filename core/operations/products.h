#pragma once

#include "core/operations/accesses.h"
#include "core/tensor.h"

// Matrix products.
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

}  // namespace starling
