#include "topology/builtin.h"
#include "topology/neighbours.h"
#include "topology/round_table.h"

namespace starling {

/// The hypercube of log2 n dimensions, all of them every round: one-peer-exp's pairs at once.
std::unique_ptr<Topology> make_hypercube(ConfigSection& section, const RankLayout& site) {
  const int n = site.ranks, dimensions = log2_up(n);
  const NeighbourWeights weights =
      read_weights(section, NeighbourWeights::Rule::kUniform, "own, i xor 1, i xor 2, i xor 4, …",
                   n, dimensions + 1);
  need_power_of_two("hypercube", site);
  const auto neighbours_of = [=](int i) {
    std::vector<int> neighbours;
    for (int b = 0; b < dimensions; ++b) neighbours.push_back(i ^ (1 << b));
    return neighbours;
  };
  return std::make_unique<RoundTable>(n, neighbour_round(n, weights, neighbours_of));
}

}  // namespace starling
