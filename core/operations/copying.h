#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "core/operations/accesses.h"
#include "core/tensor.h"

// Copies that permute, slice, pad, repeat or flip.
namespace starling {

/// A strided copy. Along each dimension of y the indices begin, begin + step, … (count of them) get
/// elements of x at distance `stride`, starting at x[first]. All other elements of y are set to
/// `others`, or left unchanged. Permutation: other strides; slicing: another `first`; padding:
/// fewer indices than y has; repetition: a stride of 0; flipping: a negative stride.
struct StridedCopy {
  struct Dimension {
    std::int64_t size = 1;  ///< of y
    std::int64_t begin = 0, count = 1, step = 1;
    std::int64_t stride = 0;  ///< in x, in elements
    /// All indices of y.
    static Dimension whole(std::int64_t size, std::int64_t stride) {
      return {size, 0, size, 1, stride};
    }
    bool is_whole() const { return begin == 0 && count == size && step == 1; }
  };
  Tensor x, y;  ///< of one dtype; y has as many elements as the sizes' product
  std::array<Dimension, Shape::kMaxRank>
      dimensions{};  ///< outermost first; `rank` of them are used
  int rank = 0;
  std::int64_t first = 0;
  std::optional<double> others = 0.0;  ///< nonzero for floating dtypes only; empty: unchanged
  /// `others` in y's dtype, in the first bytes; 0 if empty.
  std::uint64_t other_bits() const;

  Accesses accesses() const;
  /// The same copy with as few dimensions as possible, at least one: merges adjacent dimensions
  /// that are contiguous in both tensors, and drops those of size 1.
  StridedCopy joined() const;
};

}  // namespace starling
