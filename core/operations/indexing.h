#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "core/operations/accesses.h"
#include "core/tensor.h"

// Gather and scatter-add: rows of a table, or elements along a dimension, by index.
namespace starling {

/// Indices into a table [outer, rows, columns]: either n indices of rows, used for each of `outer`;
/// or
/// (`each`) one for each element of [outer, n, columns], treated as rows with a single column.
struct IndexedRows {
  std::int64_t outer = 1, rows = 0, columns = 1, n = 0;
  bool each = false;

  IndexedRows(const Tensor& table, const Tensor& index, const Tensor& values)
      : outer(table.shape()[0]),
        rows(table.shape()[1]),
        columns(table.shape()[2]),
        n(values.shape()[1]),
        each(index.elements() != n) {}
  /// The number of indexed rows.
  STARLING_HD std::int64_t named() const { return outer * n * (each ? columns : 1); }
  STARLING_HD std::int64_t width() const { return each ? 1 : columns; }
  /// The number of rows in the table.
  STARLING_HD std::int64_t all() const { return outer * rows * (each ? columns : 1); }
  /// The i-th indexed row; -1 if the index is out of range.
  STARLING_HD std::int64_t row(const std::int32_t* index, std::int64_t i) const {
    const std::int64_t number = index[each || i < n ? i : i % n];
    if (number < 0 || number >= rows) return -1;
    const std::int64_t line = each ? columns : 1, block = i < n * line ? 0 : i / (n * line);
    return (block * rows + number) * line + (each ? i % columns : 0);
  }
};

/// y[o, i, c] = x[o, index[i], c], or x[o, index[o, i, c], c] where the index has y's shape. x is
/// [outer, rows, columns], y [outer, n, columns], the index int32. An index out of range is an
/// Error(kUsage) on a CPU; on a GPU, which cannot report it, y becomes NaN there.
struct Gather {
  Tensor x, index, y;
  Accesses accesses() const {
    // At most as much of x as y has.
    return Accesses().read({index}).read_part(x, y).write({y});
  }
};

/// y[o, r, c] = Σ x[o, i, c] over all i with index r, in ascending order, in fp64. The reverse of
/// Gather; y has x's dtype or is a parameter's gradient. Indices out of range are an error on a
/// CPU, and ignored on a GPU.
struct ScatterAdd {
  Tensor x, index, y;
  bool accumulate = false;
  Accesses accesses() const { return Accesses().read({x, index}).output(accumulate, {y}); }
};

}  // namespace starling
