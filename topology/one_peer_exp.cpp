#include "core/error.h"
#include "topology/builtin.h"
#include "topology/round_table.h"

namespace starling {

/// One-peer exponential graph (Ying et al. 2021, arXiv 2110.13363) in its symmetric form: rank i
/// with i xor 2^k, one dimension of a hypercube a round.
void register_one_peer_exp(TopologyRegistry& registry) {
  registry.add(
      "one-peer-exp",
      [](ConfigSection&, const RankLayout& site) -> std::unique_ptr<Topology> {
        const int n = site.ranks;
        if (!is_power_of_two(n)) {
          fail(ExitCode::kUsage, "topology",
               "one-peer-exp needs a power of two of ranks (1, 2, 4, 8, …), not {}; for {} ranks: "
               "{}",
               n, n, topologies_that_take(site));
        }
        std::vector<Round> rounds;
        for (int bit = 1; bit < n; bit *= 2) {
          Round& round = rounds.emplace_back();
          for (int i = 0; i < n; ++i) {
            if ((i & bit) == 0) round.groups.push_back(pair_group(i, i | bit));
          }
        }
        return std::make_unique<RoundTable>(n, std::move(rounds));
      },
      "pairs (i, i xor 2^k), a power of two of ranks");
}

}  // namespace starling
