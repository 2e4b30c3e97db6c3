#include "topology/builtin.h"
#include "topology/neighbours.h"
#include "topology/round_table.h"

namespace starling {

/// Static exponential graph (Ying et al. 2021, arXiv 2110.13363): rank i receives from i - 2^k for
/// every k < ceil(log2 n), every round.
void register_static_exp(TopologyRegistry& registry) {
  registry.add(
      "static-exp",
      [](ConfigSection& section, const RankLayout& site) -> std::unique_ptr<Topology> {
        const int n = site.ranks, distances = log2_up(n);
        const NeighbourWeights weights =
            read_weights(section, NeighbourWeights::Rule::kUniform, "own, i - 1, i - 2, i - 4, …",
                         n, distances + 1);
        std::vector<std::vector<int>> neighbours(static_cast<std::size_t>(n));
        for (int i = 0; i < n; ++i) {
          for (int k = 0; k < distances; ++k)
            neighbours[static_cast<std::size_t>(i)].push_back((i + n - (1 << k)) % n);
        }
        return std::make_unique<RoundTable>(
            n, std::vector<Round>{neighbour_round(neighbours, weights)});
      },
      "every rank receives from i - 2^k for all k, any number of ranks");
}

}  // namespace starling
