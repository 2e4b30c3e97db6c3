#pragma once

#include <cstdint>
#include <vector>

#include "core/operations/accesses.h"
#include "core/tensor.h"
#include "core/view.h"

// Matrix products.
namespace starling {

/// c[.., M, N] = a[.., M, K] · b[.., K, N] (+ bias[N], optional, added to each row), then ReLU if
/// `relu` (not with `accumulate`; NaN stays NaN). Dimensions before the last two are batch
/// dimensions: a's and b's broadcast to c's, as in NumPy. Either the rows or the columns of a
/// factor must be contiguous; other strides are arbitrary, e.g. for transposed() matrices and the
/// heads of a Transformer. c's rows must be contiguous and not overlap. For low-precision a and b,
/// c may be fp32 or their dtype.
struct Matmul {
  View a, b;
  Tensor bias;
  View c;
  bool accumulate = false;
  bool relu = false;
  Accesses accesses() const;
};

/// Swaps the last two dimensions.
inline View transposed(const View& x) {
  return x.transposed(x.shape().rank() - 2, x.shape().rank() - 1);
}

/// Decomposes a product into batched ones of a[B, M, K] and b[B, K, N] into c[B, M, N], where a and
/// b may be repeated with a stride of 0: one if the strides allow it. Batches of a with the same b
/// become one matrix.
std::vector<Matmul> batches_of(const Matmul& args);

/// A factor as BLAS libraries describe it: whether it is transposed, and the leading dimension.
struct FactorLayout {
  bool transposed = false;
  std::int64_t line = 0;
};
FactorLayout factor_layout(const View& matrices);

}  // namespace starling
