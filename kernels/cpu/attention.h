#pragma once

#include "kernels/cpu/kernels.h"

// What attention's kernels take (attention_isa.cpp).
namespace starling::cpu {

/// Heads of a tensor: number d of place t of head h of sample n is data[n·sample + h·head +
/// t·place + d].
template <class T>
struct Heads {
  T* data = nullptr;
  Index sample = 0, head = 0, place = 0;
  STARLING_HD T* at(Index n, Index h, Index t = 0) const {
    return data + n * sample + h * head + t * place;
  }
};

/// Queries and keys that are a tile: a multiple of the rows of a product's register tile, and of
/// every vector's numbers.
constexpr Index kAttentionBlock = 96;

/// Attention as pointers and sizes. T is what tensors hold, R what it is computed in.
template <class T>
struct AttentionCall {
  using R = Compute<T>;
  Index samples = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, depth = 0;
  Heads<const T> q, k, v, y, dy;
  Heads<T> out, dq, dk, dv;  ///< of the forward pass; of the backward pass
  R* lse = nullptr;
  const T* mask = nullptr;  ///< optional
  Index mask_sample = 0, mask_head = 0, mask_query = 0, mask_key = 0;
  bool causal = false;
  Index window = 0;                         ///< query i sees keys above i - window; 0: any
  const std::int32_t* positions = nullptr;  ///< optional: of the queries in their documents
  R scale = 0;
  double p = 0.0;
  std::uint64_t key = 0, counter = 0;

  /// The first of the keys that query i of sample n sees. It does not fall with i.
  STARLING_HD Index first_key(Index n, Index i) const {
    Index back = window > 0 && window <= i ? window - 1 : i;
    if (positions && positions[n * queries + i] < back) back = positions[n * queries + i];
    return i - back;
  }
  /// Numbers of a place in memory: whole vectors, and whole steps of terms.
  STARLING_HD Index line() const {
    constexpr Index kStep = sizeof(T) == 2 ? 32 : 16;
    return (depth + kStep - 1) / kStep * kStep;
  }
  STARLING_HD Index query_blocks() const { return blocks(queries); }
  STARLING_HD Index query_rows() const { return blocks(queries) * kAttentionBlock; }
  STARLING_HD Index key_rows() const { return blocks(keys) * kAttentionBlock; }
  /// Numbers that a thread needs.
  STARLING_HD Index forward_scratch() const {
    return 2 * key_rows() * line() + kAttentionBlock * (2 * line() + 2 * kAttentionBlock + 8);
  }
  STARLING_HD Index backward_scratch() const {
    return (3 * query_rows() + 2 * key_rows()) * line() + 2 * query_rows() +
           kAttentionBlock * (4 * line() + 3 * kAttentionBlock + 8);
  }

 private:
  STARLING_HD static Index blocks(Index n) { return (n + kAttentionBlock - 1) / kAttentionBlock; }
};

}  // namespace starling::cpu
