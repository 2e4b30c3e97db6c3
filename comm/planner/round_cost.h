#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "comm/planner/network_model.h"
#include "topology/topology.h"

namespace starling {

/// Latency in seconds above which restarting an idle connection matters
inline constexpr double kLongLatency = 2e-3;

/// Cost of one round for all ranks: latency · ⌈bytes / window⌉ + bytes · per_byte seconds for a
/// bucket of `bytes`. Concurrent exchanges add up in the second term, not in the first.
struct RoundCost {
  double latency = 0.0;
  double window = 0.0;  ///< bytes of a bucket in flight at a time; 0: all
  double waiting(double bytes) const {
    return latency * (window > 0.0 ? std::max(1.0, std::ceil(bytes / window)) : 1.0);
  }
  double per_byte = 0.0;
  /// Mean over ranks of the bytes sent per byte of bucket
  double sent_per_byte = 0.0;
  double between_per_byte = 0.0;  ///< bytes that leave the busiest host per byte of bucket
  /// Seconds of a core per byte of bucket, for the busiest host's ranks
  double cpu_per_byte = 0.0;
  /// Length of the period's critical path per round; below 1 if hosts that are idle in some rounds
  /// proceed to the next
  double pace = 1.0;
  /// Rounds between two uses of a pair's connection, if latency makes that matter
  std::int64_t again = 1;
  /// Additional buffers that the update reads: received ones, or neighbours' in shared memory
  double local_reads = 0.0;
};
/// `whole`: MixerKind::whole; otherwise groups and nodes use sums or shared memory.
RoundCost cost_of(const Round& round, const NetworkModel& network, bool whole = false);
RoundCost cost_of_all_reduce(const NetworkModel& network);
/// First within nodes, then between them.
RoundCost cost_of_all_reduce_by_nodes(const NetworkModel& network, int ranks_per_node);
/// The costs of one period's rounds (64 at most).
std::vector<RoundCost> costs_of(const Topology& topology, const NetworkModel& network,
                                bool whole = false);

}  // namespace starling
