#include <numeric>

#include "topology/builtin.h"
#include "topology/neighbours.h"
#include "topology/round_table.h"

namespace starling {

/// Rank 0 with every other rank, every round.
std::unique_ptr<Topology> make_star(ConfigSection& section, const RankLayout& site) {
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
  const auto neighbours_of = [n](int i) {
    if (i > 0) return std::vector{0};
    std::vector<int> all(static_cast<std::size_t>(n) - 1);
    std::iota(all.begin(), all.end(), 1);
    return all;
  };
  return std::make_unique<RoundTable>(n, neighbour_round(n, weights, neighbours_of));
}

}  // namespace starling
