#pragma once

#include <cstdint>

#include "comm/algorithm.h"

namespace starling {

/// The key ranks_per_node, for AlgorithmNeeds::by_nodes; 0: as in the topology, or by host.
std::int64_t read_ranks_per_node(ConfigSection& config);
/// The number of ranks per node, from the config or the hosts. Collective. Error(kUsage) on every
/// rank if hosts have different numbers of ranks, or the number does not divide that of all ranks.
int ranks_per_node(const AlgorithmSite& site);
/// Plans the mean over all ranks in two levels, nodes and ranks, and prepares the transport for it.
/// kNone for a single rank.
Exchange mean_by_nodes(Transport& transport, int per_node);
/// Plans the sum over this rank's node, and prepares the transport for it. With two ranks the
/// received buffer is the other rank's alone.
Exchange sum_in_node(Transport& transport, int per_node);

}  // namespace starling
