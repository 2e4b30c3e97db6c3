#include "topology/builtin.h"
#include "topology/neighbours.h"
#include "topology/round_table.h"

namespace starling {

/// Static exponential graph (Ying et al. 2021, arXiv 2110.13363): rank i receives from i - 2^k for
/// every k < ceil(log2 n), every round.
std::unique_ptr<Topology> make_static_exp(ConfigSection& section, const RankLayout& site) {
  const int n = site.ranks, distances = log2_up(n);
  const NeighbourWeights weights = read_weights(section, NeighbourWeights::Rule::kUniform,
                                                "own, i - 1, i - 2, i - 4, …", n, distances + 1);
  const auto neighbours_of = [=](int i) {
    std::vector<int> neighbours;
    for (int k = 0; k < distances; ++k) neighbours.push_back((i + n - (1 << k)) % n);
    return neighbours;
  };
  return std::make_unique<RoundTable>(n, neighbour_round(n, weights, neighbours_of));
}

}  // namespace starling
