#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "comm/planner/network_model.h"
#include "topology/topology.h"

namespace starling {

/// Seconds, from which on a connection that begins again after it was idle is felt
inline constexpr double kLongLatency = 2e-3;

/// Cost of one exchange of a whole round, over all ranks: seconds = latency · ⌈bytes / window⌉ +
/// bytes · per_byte for a bucket of `bytes`. Exchanges under way at once share per_byte, not the
/// latency.
struct RoundCost {
  double latency = 0.0;
  double window = 0.0;  ///< bytes of a bucket under way at once; 0: all
  double waiting(double bytes) const {
    return latency * (window > 0.0 ? std::max(1.0, std::ceil(bytes / window)) : 1.0);
  }
  double per_byte = 0.0;
  /// Bytes that a rank sends per byte of bucket, the mean over ranks
  double sent_per_byte = 0.0;
  double between_per_byte = 0.0;  ///< bytes that leave the busiest host per byte of bucket
  /// Seconds of a core per byte of bucket, for the busiest host's ranks
  double cpu_per_byte = 0.0;
  /// Exchanges of the period in a row, for each round that has any; below 1 where hosts sit out
  /// rounds and go ahead
  double pace = 1.0;
  /// Rounds from one use of a pair's connection to the next, where latency makes that matter
  std::int64_t again = 1;
  /// Buffers that the update reads beside its own: received ones, or neighbours' where they lie
  double local_reads = 0.0;
};
/// `whole`: every neighbour gets all of a bucket, as a message; else groups and nodes add up on the
/// way, or read each other's memory.
RoundCost cost_of(const Round& round, const NetworkModel& network, bool whole = false);
RoundCost cost_of_all_reduce(const NetworkModel& network);
/// The mean inside nodes first, then between them.
RoundCost cost_of_all_reduce_by_nodes(const NetworkModel& network, int ranks_per_node);
/// The costs of one period's rounds (64 at most).
std::vector<RoundCost> costs_of(const Topology& topology, const NetworkModel& network,
                                bool whole = false);

}  // namespace starling
