#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/transport.h"

// What a rank does with the means of its own and of other nodes in a round over nodes
// (Exchange::Kind::kNodes), wherever they came from.
namespace starling {

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
