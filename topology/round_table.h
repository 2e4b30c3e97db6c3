#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "topology/topology.h"

namespace starling {

/// A topology whose rounds are all known beforehand, and repeat. An empty list is the identity, as
/// for one rank.
class RoundTable : public Topology {
 public:
  explicit RoundTable(int ranks, std::vector<Round> rounds = {})
      : Topology(ranks), rounds_(std::move(rounds)) {
    if (rounds_.empty()) rounds_.emplace_back();
  }
  /// The same round always.
  RoundTable(int ranks, const Round& round) : RoundTable(ranks, std::vector{round}) {}
  std::int64_t period() const override { return static_cast<std::int64_t>(rounds_.size()); }

 protected:
  Round make_round(std::int64_t k) const override { return rounds_[static_cast<std::size_t>(k)]; }

 private:
  std::vector<Round> rounds_;
};

/// Two ranks, in either order, that each keep `self_weight` of their own value.
inline Group pair_group(int a, int b, double self_weight = 0.5) {
  return {{std::min(a, b), std::max(a, b)}, self_weight};
}

/// The mean of `count` ranks from `first` on, with Group::mean where all are to have the same bits.
inline Group mean_group(int first, int count, bool same_bits = false) {
  Group group;
  group.mean = same_bits;
  for (int i = 0; i < count; ++i) group.ranks.push_back(first + i);
  group.self_weight = 1.0 / count;
  return group;
}

inline bool is_power_of_two(int n) { return n > 0 && (n & (n - 1)) == 0; }

/// ceil(log2 n).
inline int log2_up(int n) {
  int log = 0;
  while ((std::int64_t{1} << log) < n) ++log;
  return log;
}

/// Makes a round over `nodes` nodes a hierarchical one of `per_node` ranks each: every node is
/// named, also those that keep their value.
inline void put_over_nodes(Round& round, int nodes, int per_node) {
  if (round.rows.empty()) {
    std::vector<char> named(static_cast<std::size_t>(nodes), 0);
    for (const Group& group : round.groups) {
      for (const int node : group.ranks) named[static_cast<std::size_t>(node)] = 1;
    }
    for (int node = 0; node < nodes; ++node) {
      if (!named[static_cast<std::size_t>(node)]) round.groups.push_back({{node}, 1.0});
    }
  }
  round.ranks_per_node = per_node;
}

}  // namespace starling
