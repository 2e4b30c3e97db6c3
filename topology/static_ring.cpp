#include "topology/builtin.h"
#include "topology/neighbours.h"
#include "topology/round_table.h"

namespace starling {

/// Every rank with both neighbours on a ring, every round.
void register_static_ring(TopologyRegistry& registry) {
  registry.add(
      "static-ring",
      [](ConfigSection& section, const RankLayout& site) -> std::unique_ptr<Topology> {
        const int n = site.ranks;
        const NeighbourWeights weights =
            read_weights(section, NeighbourWeights::Rule::kUniform, "own, left, right", n, 3);
        std::vector<std::vector<int>> neighbours(static_cast<std::size_t>(n));
        for (int i = 0; i < n; ++i)
          neighbours[static_cast<std::size_t>(i)] = {(i + n - 1) % n, (i + 1) % n};
        return std::make_unique<RoundTable>(
            n, std::vector<Round>{neighbour_round(neighbours, weights)});
      },
      "every rank with both neighbours on a ring, any number of ranks");
}

}  // namespace starling
