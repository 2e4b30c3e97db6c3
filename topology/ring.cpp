#include "core/error.h"
#include "topology/builtin.h"
#include "topology/round_table.h"

namespace starling {

/// Neighbours on a ring, in pairs: rank i even with i + 1 in even rounds, with i - 1 in odd ones.
/// Disagreement shrinks by cos(2π/n) a round.
void register_ring(TopologyRegistry& registry) {
  registry.add(
      "ring",
      [](ConfigSection&, const RankLayout& site) -> std::unique_ptr<Topology> {
        const int n = site.ranks;
        if (n == 1) return std::make_unique<RoundTable>(1, std::vector<Round>{});
        if (n % 2 != 0) {
          fail(ExitCode::kUsage, "topology",
               "ring needs an even number of ranks, not {}; for {} ranks: {}", n, n,
               topologies_that_take(site));
        }
        std::vector<Round> rounds(2);
        for (int i = 0; i < n; i += 2) {
          rounds[0].groups.push_back(pair_group(i, i + 1));
          rounds[1].groups.push_back(pair_group(i, (i + n - 1) % n));
        }
        return std::make_unique<RoundTable>(n, std::move(rounds));
      },
      "pairs of neighbours in turn, an even number of ranks");
}

}  // namespace starling
