#include "topology/builtin.h"
#include "topology/round_table.h"

namespace starling {

/// One group of all ranks: every round is the exact mean, at the cost of an all-reduce.
std::unique_ptr<Topology> make_complete(ConfigSection&, const RankLayout& site) {
  std::vector<Round> rounds(1);
  if (site.ranks > 1) rounds[0].groups.push_back(mean_group(0, site.ranks));
  return std::make_unique<RoundTable>(site.ranks, std::move(rounds));
}

}  // namespace starling
