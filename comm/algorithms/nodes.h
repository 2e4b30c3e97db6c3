#pragma once

#include <cstdint>
#include <vector>

#include "comm/algorithm.h"

namespace starling {

/// The key ranks_per_node of algorithms that treat a node's ranks apart (AlgorithmNeeds::by_nodes);
/// 0: as the topology has them, or the hosts.
std::int64_t read_ranks_per_node(ConfigSection& config);
/// Collective: how many ranks a node has, as the config says, or as hosts have them. Throws
/// Error(kUsage) on every rank where hosts have different numbers, or ones that do not divide the
/// ranks.
int ranks_per_node(const AlgorithmSite& site);
/// The mean over all ranks by way of the nodes, and prepares the transport for it. kNone of a
/// single rank.
Exchange mean_by_nodes(Transport& transport, int per_node);
/// The sum over this rank's node: of two ranks, what comes is the other's numbers. Prepares the
/// transport for it.
Exchange sum_in_node(Transport& transport, int per_node);

}  // namespace starling
