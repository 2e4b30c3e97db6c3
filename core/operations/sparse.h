#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/operations/accesses.h"
#include "core/tensor.h"

// Messages with the largest numbers of each block alone (Top-k; as in SparseLoCo, arXiv
// 2508.15706).
namespace starling {

class Backend;

/// What a sparse message holds of a tensor, the same on all ranks. Blocks begin with every part of
/// the tensor, such as a parameter, and what is between parts is never sent. Of a block of m
/// elements ceil(share · m) are chosen, those of largest |v|, the first of equal ones. The message
/// is a float for each block, its scale, then for each block the chosen places in ascending order
/// (12 bits each if blocks have at most 4096 elements, else 16) and their values' codes, each from
/// a whole byte on, the first in the lowest bits.
struct SparseLayout {
  /// By block, int64: its first element, its elements, how many are chosen, where they begin in the
  /// message, and how many earlier blocks chose. One column of the five is kFields apart.
  static constexpr int kFields = 5;
  Tensor blocks;
  std::int64_t elements = 0;  ///< of the tensor
  std::int64_t count = 0;     ///< blocks
  std::int64_t block = 4096;  ///< the most elements of one
  std::int64_t chosen = 0;    ///< in all blocks
  std::int64_t bytes = 0;     ///< of the message
  int value_bits = 2;         ///< 8 and 4: codes as int8 and int4; 2: four levels from -s to s
  bool wide() const { return block > 4096; }  ///< places of 16 bits

  /// `parts`: first element and elements of each, in order. `block`: 32 … 65536.
  SparseLayout() = default;
  SparseLayout(Backend& backend, std::int64_t elements,
               const std::vector<std::pair<std::int64_t, std::int64_t>>& parts, std::int64_t block,
               double share, int value_bits);
};

/// message = C(v) of v = x - minus + residual, and residual' = decay · (v - decoded C(v)); of what
/// is in no part the residual stays. Optional: minus and residual. fp32 or fp64; choices and codes
/// are computed in fp32.
struct SparseEncode {
  Tensor x, message;
  SparseLayout layout;
  Tensor minus = {}, residual = {};
  double decay = 1.0;
  Accesses accesses() const {
    return Accesses().read({x, minus, layout.blocks}).write({message}).change({residual});
  }
};

/// out = the mean of what messages hold, Σ weight · value / Σ weight, added up in their order in
/// out's type. Of an element that not all have sent it is that of its senders, or with `of_all`
/// their sum over all messages' weights; 0 where nobody sent it.
struct SparseDecode {
  std::vector<Tensor> messages;
  /// As many, above 0, with sums that fp32 holds, such as counts; empty: 1 each
  std::vector<float> weights;
  Tensor out;
  SparseLayout layout;
  bool of_all = false;
  float weight(std::size_t message) const { return weights.empty() ? 1.0f : weights[message]; }
  /// What sums are over with `of_all`; else 0.
  double sum_of_all() const {
    double sum = 0.0;
    for (std::size_t m = 0; of_all && m < messages.size(); ++m)
      sum += static_cast<double>(weight(m));
    return sum;
  }
  Accesses accesses() const {
    Accesses result;
    result.read({layout.blocks});
    for (const Tensor& message : messages) result.read({message});
    return result.write({out});
  }
};

}  // namespace starling
