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
/// c may be fp32 or their dtype, and the bias is fp32 or of c's dtype.
struct Matmul {
  View a, b;
  Tensor bias;
  View c;
  bool accumulate = false;
  bool relu = false;
  // One of these, optional; c then lies in one piece.
  /// [M], of c's dtype: the sums of a's rows, added with `accumulate`. Where c is the gradient of a
  /// weight, and a the transposed gradient of the output, that is the gradient of a bias.
  Tensor row_sums = {};
  /// As c: written, the product and the bias, of which c is GELU in its tanh form.
  Tensor before_gelu = {};
  /// As c: c is the product times the derivative of that GELU there.
  Tensor gelu_input = {};
  bool in_steps() const { return row_sums || before_gelu || gelu_input; }
  Accesses accesses() const;
};

/// What row_sums, before_gelu and gelu_input ask for, by operations of the backend one after
/// another.
void matmul_in_steps(Backend& backend, const Matmul& args);

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
