#include "topology/builtin.h"
#include "topology/round_table.h"

namespace starling {

/// Neighbours on a ring, in pairs: rank i even with i + 1 in even rounds, with i - 1 in odd ones.
/// Disagreement shrinks by cos(2π/n) a round.
std::unique_ptr<Topology> make_ring(ConfigSection&, const RankLayout& site) {
  const int n = site.ranks;
  if (n == 1) return std::make_unique<RoundTable>(1);
  need_even("ring", site);
  std::vector<Round> rounds(2);
  for (int i = 0; i < n; i += 2) {
    rounds[0].groups.push_back(pair_group(i, i + 1));
    rounds[1].groups.push_back(pair_group(i, (i + n - 1) % n));
  }
  return std::make_unique<RoundTable>(n, std::move(rounds));
}

}  // namespace starling
