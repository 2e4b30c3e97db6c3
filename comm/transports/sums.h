#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/transport.h"
#include "core/dtype.h"

// Arithmetic of what ranks add up: sums in rank order, and what a rank does with the means of its
// own and of other nodes in a round over nodes (Exchange::Kind::kNodes), wherever they came from.
namespace starling {

/// The type of a sum of numbers of a type: the same for fp32 and fp64, fp32 for bf16.
constexpr DType sum_type(DType dtype) {
  return dtype == DType::kBFloat16 ? DType::kFloat32 : dtype;
}

/// out[i] = ((w_0·in[0][i] + w_1·in[1][i]) + w_2·in[2][i]) + …, one input or more, in
/// sum_type(dtype); `weights` null: all are 1. out may be one of the inputs of its type. Each
/// element is summed alone and in this order, so its bits do not depend on how a message was cut.
/// Denormals count as zero on every thread.
void sum_in_order(DType dtype, const std::vector<const std::byte*>& in, const double* weights,
                  std::int64_t count, std::byte* out);

/// out[i] = bf16(in[i]), rounded to nearest even.
void encode_bf16(const float* in, std::int64_t count, std::byte* out);
/// out[i] = in[i]. `in` may be the second half of out's memory: then each number is read before its
/// place is written.
void decode_bf16(const std::byte* in, std::int64_t count, float* out);

/// Terms or weights of a mix in full precision, its own first, come into the order of the nodes:
/// where all weigh alike, every node adds up in one order and gets the same bits.
template <class T>
void in_node_order(const Exchange& exchange, std::vector<T>& terms) {
  if (exchange.bf16_between) return;
  const auto before = std::lower_bound(exchange.receive_from.begin(), exchange.receive_from.end(),
                                       exchange.group.front());
  std::rotate(terms.begin(), terms.begin() + 1,
              terms.begin() + 1 + (before - exchange.receive_from.begin()));
}
/// Weights of the mix of own and other nodes' means. In full precision: own_share · mean + Σ
/// shares[k] · arrived[k], in node order. With bf16 on the wire, C() being rounded: mean + Σ
/// shares[k] · (C(arrived[k]) - C(mean)), so that two nodes add and subtract the same numbers and
/// their mean stays; the terms are the mean, C(mean), and what arrived.
std::vector<double> node_weights(const Exchange& exchange);

}  // namespace starling
