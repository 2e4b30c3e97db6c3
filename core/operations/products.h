#pragma once

#include <cstdint>
#include <vector>

#include "core/operations/accesses.h"
#include "core/tensor.h"
#include "core/view.h"

// Matrix products.
namespace starling {

/// c[.., M, N] = a[.., M, K] · b[.., K, N] (+ bias[N], optional, added to each row), then ReLU if
/// `relu` (not with `accumulate`; NaN stays NaN). Dimensions before the last two are batches: a's
/// and b's broadcast to c's, as NumPy's do. A factor's rows or its columns lie side by side in
/// memory, all other strides are free: `transposed` of a matrix is one, heads of a Transformer are
/// others. c's rows lie whole and apart. For low-precision a and b, c may be fp32 or of their
/// dtype.
struct Matmul {
  View a, b;
  Tensor bias;
  View c;
  bool accumulate = false;
  bool relu = false;
  Accesses accesses() const;
};

/// A matrix, or the last two dimensions of a batch, with rows for columns.
inline View transposed(const View& x) {
  return x.transposed(x.shape().rank() - 2, x.shape().rank() - 1);
}

/// The products that one comes down to: of a[B, M, K] and b[B, K, N] into c[B, M, N], where a and b
/// may have one matrix for all, with a stride of 0. All are one, unless their strides have more to
/// them. Rows of a with one b are one matrix.
std::vector<Matmul> batches_of(const Matmul& args);

/// One factor of those as libraries want it: whether it is a matrix of whole rows that is read with
/// rows for columns, and elements from one of these rows to the next.
struct FactorLayout {
  bool transposed = false;
  std::int64_t line = 0;
};
FactorLayout factor_layout(const View& matrices);

}  // namespace starling
