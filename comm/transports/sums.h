#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/transport.h"
#include "core/dtype.h"

// Arithmetic of transports: sums in rank order, and the mix of nodes' means in a round over nodes
// (Exchange::Kind::kNodes).
namespace starling {

/// The type of sums: that of the terms for fp32 and fp64, fp32 for bf16.
constexpr DType sum_type(DType dtype) {
  return dtype == DType::kBFloat16 ? DType::kFloat32 : dtype;
}

/// out[i] = ((w_0·in[0][i] + w_1·in[1][i]) + w_2·in[2][i]) + …, in sum_type(dtype), for at least
/// one input; `weights` null: all are 1. out may be one of the inputs if the types are equal. The
/// bits do not depend on how a message is split. Subnormal numbers are treated as zero.
void sum_in_order(DType dtype, const std::vector<const std::byte*>& in, const double* weights,
                  std::int64_t count, std::byte* out);

/// out[i] = bf16(in[i]), rounded to nearest even.
void encode_bf16(const float* in, std::int64_t count, std::byte* out);
/// out[i] = in[i]. `in` may be the second half of out's memory.
void decode_bf16(const std::byte* in, std::int64_t count, float* out);

/// Sorts terms or weights of a mix in full precision, this node's first, into node order, so that
/// all nodes sum in the same order and, with equal weights, get the same bits.
template <class T>
void in_node_order(const Exchange& exchange, std::vector<T>& terms) {
  if (exchange.bf16_between) return;
  const auto before = std::lower_bound(exchange.receive_from.begin(), exchange.receive_from.end(),
                                       exchange.group.front());
  std::rotate(terms.begin(), terms.begin() + 1,
              terms.begin() + 1 + (before - exchange.receive_from.begin()));
}
/// Weights for mixing the nodes' means. In full precision: own_share · mean + Σ shares[k] ·
/// received[k], in node order. With bf16 on the wire, where C() rounds: mean + Σ shares[k] ·
/// (C(received[k]) - C(mean)), so that two nodes add and subtract the same numbers and their mean
/// does not change; the terms are mean, C(mean), then those received.
std::vector<double> node_weights(const Exchange& exchange);

}  // namespace starling
