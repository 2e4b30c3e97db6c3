#pragma once

#include "core/operations/accesses.h"
#include "core/tensor.h"

// Rows of a table by number.
namespace starling {

/// y[i] = table[tokens[i]]: tokens int32 of any shape, table[rows, columns], y of tokens' shape
/// with `columns` behind it. A token outside the table is an Error(kUsage) on a CPU; on a GPU,
/// which cannot stop the call, its row of y becomes NaN.
struct EmbeddingForward {
  Tensor tokens, table, y;
  Accesses accesses() const {
    // Of the table, at most a row for each token.
    return Accesses().read({tokens}).read_part(table, y).write({y});
  }
};

/// dtable[row] = Σ dy[i] over the i whose token is `row`, in their order, in fp64; a parameter's
/// gradient. Tokens outside the table are left out.
struct EmbeddingBackward {
  Tensor tokens, dy, dtable;
  bool accumulate = false;
  Accesses accesses() const { return Accesses().read({tokens, dy}).output(accumulate, {dtable}); }
};

}  // namespace starling
