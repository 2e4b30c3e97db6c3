#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "comm/transport.h"
#include "topology/topology.h"

namespace starling {

/// What one rank does in round k: planned once for a topology with a period, round by round for one without.
class ExchangeSchedule {
 public:
  /// No topology: the identity (a single rank).
  ExchangeSchedule(const Topology* topology, int rank);
  /// The result is valid until round k + 2 is asked for.
  const Exchange& round(std::int64_t k);
  /// The most receive buffers that any planned round needs; 0 before the first round of a topology without period.
  std::size_t most_received() const { return most_received_; }

 private:
  const Topology* topology_;
  int rank_;
  std::vector<Exchange> period_;
  std::array<Exchange, 2> recent_;  ///< of a topology without period: round t - 1 and round t are in use at once
  std::array<std::int64_t, 2> recent_round_{-1, -1};
  std::size_t most_received_ = 0;
  Exchange identity_;
};

}  // namespace starling
