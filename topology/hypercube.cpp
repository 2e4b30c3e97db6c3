#include "core/error.h"
#include "topology/builtin.h"
#include "topology/neighbours.h"
#include "topology/round_table.h"

namespace starling {

/// The hypercube of log2 n dimensions, all of them every round: one-peer-exp's pairs at once.
void register_hypercube(TopologyRegistry& registry) {
  registry.add(
      "hypercube",
      [](ConfigSection& section, const RankLayout& site) -> std::unique_ptr<Topology> {
        const int n = site.ranks, dimensions = log2_up(n);
        const NeighbourWeights weights =
            read_weights(section, NeighbourWeights::Rule::kUniform,
                         "own, i xor 1, i xor 2, i xor 4, …", n, dimensions + 1);
        if (!is_power_of_two(n)) {
          fail(ExitCode::kUsage, "topology",
               "hypercube needs a power of two of ranks (1, 2, 4, 8, …), not {}; for {} ranks: {}",
               n, n, topologies_that_take(site));
        }
        std::vector<std::vector<int>> neighbours(static_cast<std::size_t>(n));
        for (int i = 0; i < n; ++i) {
          for (int b = 0; b < dimensions; ++b)
            neighbours[static_cast<std::size_t>(i)].push_back(i ^ (1 << b));
        }
        return std::make_unique<RoundTable>(
            n, std::vector<Round>{neighbour_round(neighbours, weights)});
      },
      "every rank with its log2 n neighbours i xor 2^k, a power of two of ranks");
}

}  // namespace starling
