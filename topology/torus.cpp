#include "topology/builtin.h"
#include "topology/neighbours.h"
#include "topology/round_table.h"

namespace starling {

/// r × c ranks, row by row, r the largest divisor of n up to sqrt(n); every rank with the four
/// beside it, around the edges. A prime number of ranks is one row: a static ring.
std::unique_ptr<Topology> make_torus(ConfigSection& section, const RankLayout& site) {
  const int n = site.ranks;
  const NeighbourWeights weights =
      read_weights(section, NeighbourWeights::Rule::kUniform, "own, up, down, left, right", n, 5);
  int rows = 1;
  for (int r = 1; static_cast<std::int64_t>(r) * r <= n; ++r) {
    if (n % r == 0) rows = r;
  }
  const int columns = n / rows;
  const auto neighbours_of = [=](int i) {
    const int r = i / columns, c = i % columns;
    return std::vector{(r + rows - 1) % rows * columns + c, (r + 1) % rows * columns + c,
                       r * columns + (c + columns - 1) % columns, r * columns + (c + 1) % columns};
  };
  return std::make_unique<RoundTable>(n, neighbour_round(n, weights, neighbours_of));
}

}  // namespace starling
