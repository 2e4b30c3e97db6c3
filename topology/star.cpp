#include "topology/builtin.h"
#include "topology/neighbours.h"
#include "topology/round_table.h"

namespace starling {

/// Rank 0 with every other rank, every round.
void register_star(TopologyRegistry& registry) {
  registry.add(
      "star",
      [](ConfigSection& section, const RankLayout& site) -> std::unique_ptr<Topology> {
        const int n = site.ranks;
        const NeighbourWeights weights =
            read_weights(section, NeighbourWeights::Rule::kMetropolis, "", n, 0);
        if (weights.rule == NeighbourWeights::Rule::kUniform && n > 2) {
          section.error("weights",
                        "uniform weights on a star of {} ranks lose the mean (columns do not sum "
                        "to 1, for the centre has "
                        "more neighbours than the others); \"metropolis\" keeps it",
                        n);
        }
        std::vector<std::vector<int>> neighbours(static_cast<std::size_t>(n));
        for (int i = 1; i < n; ++i) {
          neighbours[0].push_back(i);
          neighbours[static_cast<std::size_t>(i)] = {0};
        }
        return std::make_unique<RoundTable>(
            n, std::vector<Round>{neighbour_round(neighbours, weights)});
      },
      "rank 0 with all others, any number of ranks");
}

}  // namespace starling
