#pragma once

#include <memory>

#include "comm/algorithm.h"

// This folder has one file for each algorithm, and what they share: updater (the fused update of a
// bucket, clipping, fp16's overflow flag). A new algorithm is a file that defines plan_<type>, a
// line of the list below, documentation and tests.

namespace starling {

/// X(type in a config, text of `--list algorithms`)
#define STARLING_ALGORITHMS(X)                                                              \
  X(gossip,                                                                                 \
    "mix parameters with a round's neighbours, overlapped with the next forward and "       \
    "backward pass")                                                                        \
  X(allreduce, "average gradients over all ranks, overlapped with the backward pass")       \
  X(qgm,                                                                                    \
    "quasi-global momentum: follows how mixed parameters moved; for ranks whose data "      \
    "differ")                                                                               \
  X(decentlam,                                                                              \
    "momentum that does not enlarge the bias of ranks with other data; one "                \
    "symmetric round")                                                                      \
  X(gradient_tracking, "every rank follows the mean gradient of all; two exchanges a step") \
  X(momentum_tracking, "momentum corrected by how ranks differ; two exchanges a step")      \
  X(exact_diffusion, "removes the bias of ranks with other data (with lazy false: D2)")     \
  X(push_sum, "gossip over one-way graphs whose ranks may receive unequally much")          \
  X(choco,                                                                                  \
    "gossip in 8 bits whose encoding errors fade: ranks send how far they went from "       \
    "what others believe")                                                                  \
  X(low_precision, "Bagua's ring in 8 bits, with a replica of every neighbour")             \
  X(bytegrad, "average gradients over all ranks in 8 bits")                                 \
  X(qadam, "Adam whose ranks average momenta in 8 bits, once the second moment stays")      \
  X(local_sgd,                                                                              \
    "ranks train alone and average their models every few steps (post-local SGD "           \
    "with a start)")                                                                        \
  X(slowmo,                                                                                 \
    "as local_sgd, with a momentum over the averages; between them alone or with "          \
    "gossip")                                                                               \
  X(diloco,                                                                                 \
    "rare averages as steps of an outer optimizer; in fragments and delayed where "         \
    "wished")                                                                               \
  X(gossip_diloco,                                                                          \
    "outer steps by gossip: each rank's own, whose results mix with neighbours while all "  \
    "go on")                                                                                \
  X(async,                                                                                  \
    "ranks train alone and add their models' mean whenever it arrives; no step waits "      \
    "(not repeatable)")

#define STARLING_DECLARE_ALGORITHM(type, summary) AlgorithmPlan plan_##type(ConfigSection& config);
STARLING_ALGORITHMS(STARLING_DECLARE_ALGORITHM)
#undef STARLING_DECLARE_ALGORITHM

/// All-reduce in chunks: each rank sums one and sends the result to all.
std::unique_ptr<Algorithm> make_scatter_gather(const AlgorithmSite& site, bool average, bool delay);
/// All-reduce with default settings, over all ranks or those of each node.
std::unique_ptr<Algorithm> make_all_reduce(const AlgorithmSite& site);
std::unique_ptr<Algorithm> make_node_all_reduce(const AlgorithmSite& site, int per_node);
/// The key ranks_per_node, for AlgorithmNeeds::by_nodes; 0: as in the topology, or by host.
std::int64_t read_ranks_per_node(ConfigSection& config);
/// The number of ranks per node, from the config or the hosts. Collective. Error(kUsage) on every
/// rank if hosts have different numbers of ranks, or the number does not divide that of all ranks.
int ranks_per_node(const AlgorithmSite& site);

/// Runs an algorithm between replicas (comm/replica.h): what `make` makes gets this rank's part of
/// each bucket for a bucket, and the mean over its replica for gradients. `site`: its buckets are
/// whole, its transport is Replica::between().
std::unique_ptr<Algorithm> make_in_replica(
    const AlgorithmSite& site,
    const std::function<std::unique_ptr<Algorithm>(const AlgorithmSite&)>& make);

}  // namespace starling
