#pragma once

#include <cstdint>

#include "core/operations/accesses.h"
#include "core/tensor.h"

// What looks at all numbers of a dimension in their order. Tensors are [outer, n, inner], n along
// the dimension.
namespace starling {

/// The k largest numbers of each line of x, from the largest on, and of equal ones the first; NaN
/// is larger than any. values is [outer, k, inner], and so is index (int32): their places. One of
/// the two is optional.
struct TopK {
  Tensor x, values, index;
  std::int64_t k() const { return (index ? index : values).shape()[1]; }
  Accesses accesses() const { return Accesses().read({x}).write({values, index}); }
};

/// y[o, i, c] = Σ x[o, j, c] over the j up to i, or with `reverse` over those from i on; in fp64,
/// and rounded once.
struct CumulativeSum {
  Tensor x, y;
  bool reverse = false;
  Accesses accesses() const { return Accesses().read({x}).write({y}); }
};

}  // namespace starling
