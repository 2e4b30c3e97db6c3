#include "topology/builtin.h"
#include "topology/neighbours.h"
#include "topology/round_table.h"

namespace starling {

/// One-peer exponential graph in its directed form (Assran et al. 2019, arXiv 1811.10792): in round
/// k rank i receives from i - 2^(k mod ceil(log2 n)) and sends to i + 2^(…).
void register_directed_exp(TopologyRegistry& registry) {
  registry.add(
      "directed-exp",
      [](ConfigSection& section, const RankLayout& site) -> std::unique_ptr<Topology> {
        const int n = site.ranks;
        const NeighbourWeights weights =
            read_weights(section, NeighbourWeights::Rule::kUniform, "own, received", n, 2);
        std::vector<Round> rounds;
        for (int k = 0; k < log2_up(n); ++k) {
          std::vector<std::vector<int>> neighbours(static_cast<std::size_t>(n));
          for (int i = 0; i < n; ++i)
            neighbours[static_cast<std::size_t>(i)] = {(i + n - (1 << k)) % n};
          rounds.push_back(neighbour_round(neighbours, weights));
        }
        return std::make_unique<RoundTable>(n, std::move(rounds));
      },
      "rank i receives from i - 2^k, k in turn, any number of ranks; exact for powers of two");
}

}  // namespace starling
