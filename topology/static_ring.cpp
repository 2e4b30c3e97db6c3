#include "topology/builtin.h"
#include "topology/neighbours.h"
#include "topology/round_table.h"

namespace starling {

/// Every rank with both neighbours on a ring, every round.
std::unique_ptr<Topology> make_static_ring(ConfigSection& section, const RankLayout& site) {
  const int n = site.ranks;
  const NeighbourWeights weights =
      read_weights(section, NeighbourWeights::Rule::kUniform, "own, left, right", n, 3);
  const auto neighbours_of = [n](int i) { return std::vector{(i + n - 1) % n, (i + 1) % n}; };
  return std::make_unique<RoundTable>(n, neighbour_round(n, weights, neighbours_of));
}

}  // namespace starling
