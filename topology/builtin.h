#pragma once

#include <memory>
#include <string>

#include "topology/check.h"
#include "topology/topology.h"

namespace starling {

/// The list of topologies: X(its maker is make_<this>; type in a config; what `--list topologies`
/// says of it).
#define STARLING_TOPOLOGIES(X)                                                                    \
  X(complete, "complete", "one group of all ranks, any number")                                   \
  X(ring, "ring", "pairs of neighbours in turn, an even number of ranks")                         \
  X(one_peer_exp, "one-peer-exp", "pairs (i, i xor 2^k), a power of two of ranks")                \
  X(alternating_exp_ring, "alternating-exp-ring",                                                 \
    "means inside nodes and over pairs of nodes in turn, 2, 4, 8, … nodes")                       \
  X(base2, "base-2", "pairs that reach exact consensus for any number of ranks")                  \
  X(random_matching, "random-matching", "pairs drawn anew every round, any number of ranks")      \
  X(hypercube, "hypercube",                                                                       \
    "every rank with its log2 n neighbours i xor 2^k, a power of two of ranks")                   \
  X(torus, "torus",                                                                               \
    "every rank with the four beside it on a torus as square as n allows, any number of ranks")   \
  X(static_exp, "static-exp", "every rank receives from i - 2^k for all k, any number of ranks")  \
  X(static_ring, "static-ring", "every rank with both neighbours on a ring, any number of ranks") \
  X(star, "star", "rank 0 with all others, any number of ranks")                                  \
  X(directed_exp, "directed-exp",                                                                 \
    "rank i receives from i - 2^k, k in turn, any number of ranks; exact for powers of two")      \
  X(shift_one, "shift-one",                                                                       \
    "the first half of the ranks against the second, shifted by one each round, an even number "  \
    "of ranks")                                                                                   \
  X(hierarchical, "hierarchical",                                                                 \
    "the mean inside each node, another topology between nodes, ranks a multiple of "             \
    "ranks_per_node")                                                                             \
  X(custom, "custom", "rounds listed in the config")

#define STARLING_DECLARE_TOPOLOGY(name, type, summary) \
  std::unique_ptr<Topology> make_##name(ConfigSection& section, const RankLayout& site);
STARLING_TOPOLOGIES(STARLING_DECLARE_TOPOLOGY)
#undef STARLING_DECLARE_TOPOLOGY

/// Throw Error(kUsage) where the number of ranks is none of these, with topologies that take it.
void need_even(const std::string& type, const RankLayout& site);
void need_power_of_two(const std::string& type, const RankLayout& site);
/// Reads `ranks_per_node`, the site's by default.
int read_ranks_per_node(ConfigSection& section, const RankLayout& site);
/// Names of the registered topologies that take this site without further keys: "base-2, complete,
/// random-matching". For errors of makers that do not.
std::string topologies_that_take(const RankLayout& site,
                                 TopologyKind kind = TopologyKind::kDoublyStochastic);

}  // namespace starling
