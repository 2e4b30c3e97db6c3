#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "topology/topology.h"

namespace starling {

/// A topology whose rounds are all known beforehand, and repeat. An empty list is the identity, as for one rank.
class RoundTable : public Topology {
 public:
  RoundTable(int ranks, std::vector<Round> rounds) : Topology(ranks), rounds_(std::move(rounds)) {
    if (rounds_.empty()) rounds_.emplace_back();
  }
  std::int64_t period() const override { return static_cast<std::int64_t>(rounds_.size()); }

 protected:
  Round make_round(std::int64_t k) const override { return rounds_[static_cast<std::size_t>(k)]; }

 private:
  std::vector<Round> rounds_;
};

/// Two ranks, in either order, that each keep `self_weight` of their own value.
inline Group pair_group(int a, int b, double self_weight = 0.5) { return {{std::min(a, b), std::max(a, b)}, self_weight}; }

/// The mean of `count` ranks from `first` on.
inline Group mean_group(int first, int count) {
  Group group;
  for (int i = 0; i < count; ++i) group.ranks.push_back(first + i);
  group.self_weight = 1.0 / count;
  return group;
}

inline bool is_power_of_two(int n) { return n > 0 && (n & (n - 1)) == 0; }

}  // namespace starling
