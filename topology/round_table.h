#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
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

/// A topology whose every so-many-th round is the mean over all ranks; its own rounds are the
/// others (Gossip-PGA, arXiv 2105.09080).
class WithGlobalRounds final : public Topology {
 public:
  WithGlobalRounds(const Topology& inner, std::int64_t every)
      : Topology(inner.ranks()), inner_(inner), every_(every) {}
  /// Number of rounds after which both end together; 0 if that is more than anybody plans ahead.
  std::int64_t period() const override {
    if (every_ == 1) return 1;
    if (inner_.period() == 0) return 0;
    const std::int64_t both = std::lcm(every_ - 1, inner_.period()) / (every_ - 1) * every_;
    return both > kMostRounds ? 0 : both;
  }

 protected:
  Round make_round(std::int64_t k) const override {
    if ((k + 1) % every_ == 0) return {.groups = {mean_group(0, ranks(), true)}, .rows = {}};
    return inner_.round(k - k / every_);
  }

 private:
  static constexpr std::int64_t kMostRounds = 4096;
  const Topology& inner_;
  std::int64_t every_;
};

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
