#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "core/operations/accesses.h"
#include "core/tensor.h"

// Places by number: rows of a table, numbers along a dimension, and what is added up there.
namespace starling {

/// The rows that an index names in a table[outer, rows, columns]. It has one number for each of n
/// rows, the same for each of `outer`, or one for each number of [outer, n, columns], which are
/// rows of one column then.
struct IndexedRows {
  std::int64_t outer = 1, rows = 0, columns = 1, n = 0;
  bool each = false;

  IndexedRows(const Tensor& table, const Tensor& index, const Tensor& values)
      : outer(table.shape()[0]),
        rows(table.shape()[1]),
        columns(table.shape()[2]),
        n(values.shape()[1]),
        each(index.elements() != n) {}
  /// Rows that are named, counted over [outer, n], or of one column.
  STARLING_HD std::int64_t named() const { return outer * n * (each ? columns : 1); }
  STARLING_HD std::int64_t width() const { return each ? 1 : columns; }
  /// Rows that there are.
  STARLING_HD std::int64_t all() const { return outer * rows * (each ? columns : 1); }
  /// The row that is named i-th; -1 where the index lies outside.
  STARLING_HD std::int64_t row(const std::int32_t* index, std::int64_t i) const {
    const std::int64_t number = index[each || i < n ? i : i % n];
    if (number < 0 || number >= rows) return -1;
    const std::int64_t line = each ? columns : 1, block = i < n * line ? 0 : i / (n * line);
    return (block * rows + number) * line + (each ? i % columns : 0);
  }
};

/// y[o, i, c] = x[o, index[i], c], or x[o, index[o, i, c], c] where the index has y's shape. x is
/// [outer, rows, columns], y [outer, n, columns], the index int32. A number outside the rows is an
/// Error(kUsage) on a CPU; on a GPU, which cannot stop the call, y becomes NaN there.
struct Gather {
  Tensor x, index, y;
  Accesses accesses() const {
    // Of x, at most what y has.
    return Accesses().read({index}).read_part(x, y).write({y});
  }
};

/// y[o, r, c] = Σ x[o, i, c] over the i whose index is r, in their order, in fp64. Shapes are a
/// Gather's the other way around; y has x's dtype or is a parameter's gradient. Numbers outside the
/// rows are an error on a CPU, and left out on a GPU.
struct ScatterAdd {
  Tensor x, index, y;
  bool accumulate = false;
  Accesses accesses() const { return Accesses().read({x, index}).output(accumulate, {y}); }
};

}  // namespace starling
