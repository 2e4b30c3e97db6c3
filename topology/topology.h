#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/config.h"
#include "core/registry.h"

// What lives in topology: the mathematics of mixing. A topology gives groups, or rows of a matrix,
// by round. pairs, neighbours and nodes have several each, base2 and custom one; round_table helps.
// mixing, rational: exact products and spectra; check: what is refused before training; simulation:
// how fast ranks agree; picture: drawings. It uses core alone and moves no data.

namespace starling {

/// Ranks that average among themselves: W_ii = self_weight, W_ij = (1 - self_weight)/(m - 1) for
/// the m - 1 others (decent-dp's Edge). A group of one is the identity and need not be listed.
struct Group {
  std::vector<int> ranks;  ///< ascending
  double self_weight = 0.5;
  /// The group takes the mean: self_weight is 1/m, and all members are to have the same bits, of
  /// the sum in rank order, divided.
  bool mean = false;
};

/// One round of a topology, for all ranks: a mixing matrix W as disjoint groups, or as sparse rows
/// where groups cannot say it.
struct Round {
  std::vector<Group> groups;  ///< ranks in no group keep their value
  /// rows[i]: (j, W_ij) with W_ij ≠ 0, ascending j; empty when the round is given by groups.
  std::vector<std::vector<std::pair<int, double>>> rows;
  /// L > 1: a hierarchical round. Groups and rows number nodes then, node j being ranks jL … jL + L
  /// - 1, and name every node (one alone as a group of one). Each node takes its mean, the nodes
  /// mix, and every rank gets its node's result: W = W_nodes ⊗ J/L. An exchange can do that as a
  /// reduce-scatter inside, an exchange of each rank's shard with its peers of the same number on
  /// other nodes, and an all-gather inside.
  int ranks_per_node = 1;
  bool identity() const { return groups.empty() && rows.empty(); }
};

/// A round's matrix with ranks_per_node = 1: by groups where every group of nodes takes its mean,
/// else by rows of deg · L entries.
Round over_ranks(const Round& round);

/// A schedule of mixing matrices W(0), W(1), … that repeats with period(). Pure mathematics: the
/// same object on every rank.
class Topology {
 public:
  virtual ~Topology() = default;
  explicit Topology(int ranks) : ranks_(ranks) {}
  int ranks() const { return ranks_; }
  /// Rounds until the schedule repeats; 0 for a schedule without period (random-matching).
  virtual std::int64_t period() const = 0;
  /// Round k, k ≥ 0. Checks k, then calls make_round(k mod period).
  Round round(std::int64_t k) const;
  /// Row i of round k's matrix as (j, weight) pairs, ascending j.
  static std::vector<std::pair<int, double>> row(const Round& round, int i);

 protected:
  virtual Round make_round(std::int64_t k) const = 0;

 private:
  int ranks_;
};

/// The ranks of a run, and how many of them share a node.
struct RankLayout {
  int ranks = 1;
  int ranks_per_node = 1;
  /// So many consecutive ranks of a node share one copy of the model (comm/replica.h)
  int replica = 1;
  /// The replicas, as what topologies, algorithms and samplers take for ranks.
  RankLayout replicas() const {
    return {ranks / replica, ranks_per_node > replica ? ranks_per_node / replica : 1};
  }
};

using TopologyRegistry = Registry<std::unique_ptr<Topology>, ConfigSection&, const RankLayout&>;
/// The table of topologies by name; a maker throws Error(kUsage) if the number of ranks does not
/// fit, saying which numbers do and which topologies take this one.
TopologyRegistry& topologies();
/// Adds complete, ring, one-peer-exp, … once; safe to call again.
void register_builtin_topologies();
/// All registered topologies that take this site without further keys, by name.
std::vector<std::pair<std::string, std::unique_ptr<Topology>>> topologies_for(
    const RankLayout& site);

enum class TopologyKind : std::uint8_t;
/// Reads `type` (default: `standard`) and the type's keys from the section, makes the topology and
/// checks it (check.h), as what an algorithm that asks for `kind` may have.
std::unique_ptr<Topology> make_topology(ConfigSection& section, const RankLayout& site,
                                        TopologyKind kind, const std::string& standard = "base-2");
std::unique_ptr<Topology> make_topology(ConfigSection& section, const RankLayout& site);
/// Makes a topology without the check, for one that is part of another, or whose check gives a
/// report that is needed.
std::unique_ptr<Topology> make_unchecked_topology(ConfigSection& section, const RankLayout& site,
                                                  const std::string& standard = "base-2");

}  // namespace starling
