#pragma once

#include <cstdint>
#include <vector>

#include "core/operations/accesses.h"
#include "core/tensor.h"

// Matrix products.
namespace starling {

/// c[.., M, N] = op(a) · op(b) (+ bias[N], optional, added to each row), then ReLU if `relu` (not
/// with `accumulate`; NaN stays NaN); op transposes the last two dimensions where asked. Those
/// before are batches: a's and b's broadcast to c's, as NumPy's do. For low-precision a and b, c
/// may be fp32 or of their dtype.
struct Matmul {
  Tensor a, b, bias, c;
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;
  bool relu = false;
  Accesses accesses() const {
    const Shape& shape = a.shape();
    const std::int64_t k = shape[shape.rank() - (transpose_a ? 2 : 1)];
    return Accesses().read({a, b, bias}).output(accumulate, {c}).multiplies(k, c);
  }
};

/// The products that one comes down to: of a[B, M, K] and b[B, K, N], or their transposes, into
/// c[B, M, N], where a and b may have one matrix in place of B. All are one, unless the batches
/// broadcast in one dimension and not in another. Rows of a with one b are one matrix.
std::vector<Matmul> batches_of(const Matmul& args);

}  // namespace starling
