#include "comm/transports/node_mix.h"

#include <cstring>
#include <numeric>

#include "core/dtype.h"

namespace starling {

void encode_bf16(const float* in, std::int64_t count, std::byte* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    const BFloat16 rounded(in[i]);
    std::memcpy(out + 2 * i, &rounded, 2);
  }
}

void decode_bf16(const std::byte* in, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    BFloat16 rounded;
    std::memcpy(&rounded, in + 2 * i, 2);
    const auto value = static_cast<float>(rounded);
    std::memcpy(reinterpret_cast<std::byte*>(out) + 4 * i, &value, 4);
  }
}

std::vector<double> node_weights(const Exchange& exchange) {
  std::vector<double> weights{exchange.own_share};
  if (exchange.bf16_between) {
    const double moved = std::accumulate(exchange.shares.begin(), exchange.shares.end(), 0.0);
    weights = {exchange.own_share + moved, -moved};
  }
  weights.insert(weights.end(), exchange.shares.begin(), exchange.shares.end());
  in_node_order(exchange, weights);
  return weights;
}

}  // namespace starling
