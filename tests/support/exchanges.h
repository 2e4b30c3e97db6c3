#pragma once

#include "comm/transport.h"

namespace starling::test {

/// Half of one's own numbers and half of the partner's.
inline Exchange pair_with(int partner) {
  Exchange exchange;
  exchange.kind = Exchange::Kind::kNeighbours;
  exchange.send_to = exchange.receive_from = {partner};
  exchange.self_weight = 0.5;
  exchange.weights = {0.5};
  return exchange;
}

}  // namespace starling::test
