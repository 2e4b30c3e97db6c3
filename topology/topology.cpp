#include "topology/topology.h"

#include <algorithm>

#include "core/error.h"

namespace starling {

Round Topology::round(std::int64_t k) const {
  require(k >= 0, "topology", "round {} asked for: rounds count from 0", k);
  const std::int64_t length = period();
  return make_round(length > 0 ? k % length : k);
}

std::vector<std::pair<int, double>> Topology::row(const Round& round, int i) {
  if (!round.rows.empty()) {
    require(i >= 0 && static_cast<std::size_t>(i) < round.rows.size(), "topology", "row {} of {} asked for", i, round.rows.size());
    return round.rows[static_cast<std::size_t>(i)];
  }
  for (const Group& group : round.groups) {
    if (!std::binary_search(group.ranks.begin(), group.ranks.end(), i)) continue;
    if (group.ranks.size() == 1) break;
    const double other = (1.0 - group.self_weight) / static_cast<double>(group.ranks.size() - 1);
    std::vector<std::pair<int, double>> result;
    for (const int j : group.ranks) {
      const double weight = j == i ? group.self_weight : other;
      if (weight != 0.0) result.emplace_back(j, weight);
    }
    return result;
  }
  return {{i, 1.0}};
}

}  // namespace starling
