#pragma once

#include <string>

#include "topology/check.h"
#include "topology/topology.h"

namespace starling {

// One function per file; register_builtin_topologies() calls them all.
void register_complete(TopologyRegistry& registry);
void register_ring(TopologyRegistry& registry);
void register_one_peer_exp(TopologyRegistry& registry);
void register_alternating_exp_ring(TopologyRegistry& registry);
void register_base2(TopologyRegistry& registry);
void register_random_matching(TopologyRegistry& registry);
void register_hypercube(TopologyRegistry& registry);
void register_torus(TopologyRegistry& registry);
void register_static_exp(TopologyRegistry& registry);
void register_static_ring(TopologyRegistry& registry);
void register_star(TopologyRegistry& registry);
void register_directed_exp(TopologyRegistry& registry);
void register_shift_one(TopologyRegistry& registry);
void register_hierarchical(TopologyRegistry& registry);
void register_custom(TopologyRegistry& registry);

/// Names of the registered topologies that take this site without further keys: "base-2, complete,
/// random-matching". For errors of makers that do not.
std::string topologies_that_take(const RankLayout& site,
                                 TopologyKind kind = TopologyKind::kDoublyStochastic);

}  // namespace starling
