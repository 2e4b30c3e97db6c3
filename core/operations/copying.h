#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "core/operations/accesses.h"
#include "core/tensor.h"

// Numbers that are moved as they are: permuted, cut out, padded, repeated, turned around.
namespace starling {

/// A copy by strides. Along each dimension of y, the places begin, begin + step, … (count of them)
/// take the numbers of x that lie `stride` elements apart, the first at x[first]. All other places
/// become `others`, or stay as they are. A permutation has all places and other strides; a slice
/// begins further on; padding has fewer places than y; repetition has a stride of 0; turning around
/// has a negative one.
struct StridedCopy {
  struct Dimension {
    std::int64_t size = 1;  ///< of y
    std::int64_t begin = 0, count = 1, step = 1;
    std::int64_t stride = 0;  ///< in x, in elements
    /// Every place of y takes a number.
    static Dimension whole(std::int64_t size, std::int64_t stride) {
      return {size, 0, size, 1, stride};
    }
    bool is_whole() const { return begin == 0 && count == size && step == 1; }
  };
  Tensor x, y;  ///< of one dtype; y has as many elements as the sizes' product
  std::array<Dimension, Shape::kMaxRank> dimensions{};  ///< outermost first; others stay as made
  int rank = 0;
  std::int64_t first = 0;
  std::optional<double> others = 0.0;  ///< of floating tensors any number; none: they stay
  /// `others` as y's dtype stores it, in the first bytes; 0 where they stay.
  std::uint64_t other_bits() const;

  Accesses accesses() const;
  /// The same copy in as few dimensions as possible, at least one: neighbours that are one run of
  /// numbers in both tensors are joined, and those of size 1 go.
  StridedCopy joined() const;
};

}  // namespace starling
