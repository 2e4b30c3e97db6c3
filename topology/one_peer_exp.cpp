#include "topology/builtin.h"
#include "topology/round_table.h"

namespace starling {

/// One-peer exponential graph (Ying et al. 2021, arXiv 2110.13363) in its symmetric form: rank i
/// with i xor 2^k, one dimension of a hypercube a round.
std::unique_ptr<Topology> make_one_peer_exp(ConfigSection&, const RankLayout& site) {
  const int n = site.ranks;
  need_power_of_two("one-peer-exp", site);
  std::vector<Round> rounds;
  for (int bit = 1; bit < n; bit *= 2) {
    Round& round = rounds.emplace_back();
    for (int i = 0; i < n; ++i) {
      if ((i & bit) == 0) round.groups.push_back(pair_group(i, i | bit));
    }
  }
  return std::make_unique<RoundTable>(n, std::move(rounds));
}

}  // namespace starling
