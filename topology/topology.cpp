#include "topology/topology.h"

#include <algorithm>

#include "core/error.h"

namespace starling {
namespace {

using Row = std::vector<std::pair<int, double>>;

/// Row i of what groups and rows say, be their numbers ranks or nodes.
Row unit_row(const Round& round, int i) {
  if (!round.rows.empty()) {
    require(i >= 0 && static_cast<std::size_t>(i) < round.rows.size(), "topology",
            "row {} of {} asked for", i, round.rows.size());
    return round.rows[static_cast<std::size_t>(i)];
  }
  for (const Group& group : round.groups) {
    if (!std::binary_search(group.ranks.begin(), group.ranks.end(), i)) continue;
    if (group.ranks.size() == 1) break;
    const double other = (1.0 - group.self_weight) / static_cast<double>(group.ranks.size() - 1);
    Row result;
    for (const int j : group.ranks) {
      const double weight = j == i ? group.self_weight : other;
      if (weight != 0.0) result.emplace_back(j, weight);
    }
    return result;
  }
  return {{i, 1.0}};
}

}  // namespace

Round Topology::round(std::int64_t k) const {
  require(k >= 0, "topology", "round {} asked for: rounds count from 0", k);
  const std::int64_t length = period();
  return make_round(length > 0 ? k % length : k);
}

Round over_ranks(const Round& round) {
  const int per_node = round.ranks_per_node;
  if (per_node == 1) return round;
  Round result;
  const bool means = round.rows.empty() &&
                     std::all_of(round.groups.begin(), round.groups.end(), [](const Group& group) {
                       return group.ranks.size() == 1 ||
                              group.self_weight == 1.0 / static_cast<double>(group.ranks.size());
                     });
  if (means) {
    for (const Group& group : round.groups) {
      Group& merged = result.groups.emplace_back();
      for (const int node : group.ranks) {
        for (int r = 0; r < per_node; ++r) merged.ranks.push_back(node * per_node + r);
      }
      merged.self_weight = 1.0 / static_cast<double>(merged.ranks.size());
    }
    return result;
  }
  int nodes = static_cast<int>(round.rows.size());
  for (const Group& group : round.groups) nodes += static_cast<int>(group.ranks.size());
  for (int i = 0; i < nodes * per_node; ++i) result.rows.push_back(Topology::row(round, i));
  return result;
}

std::vector<std::pair<int, double>> Topology::row(const Round& round, int i) {
  const int per_node = round.ranks_per_node;
  if (per_node == 1) return unit_row(round, i);
  Row result;
  for (const auto& [node, weight] : unit_row(round, i / per_node)) {
    for (int r = 0; r < per_node; ++r) result.emplace_back(node * per_node + r, weight / per_node);
  }
  return result;
}

}  // namespace starling
