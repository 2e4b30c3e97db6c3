#include "topology/builtin.h"
#include "topology/neighbours.h"
#include "topology/round_table.h"

namespace starling {

/// One-peer exponential graph in its directed form (Assran et al. 2019, arXiv 1811.10792): in round
/// k rank i receives from i - 2^(k mod ceil(log2 n)) and sends to i + 2^(…).
std::unique_ptr<Topology> make_directed_exp(ConfigSection& section, const RankLayout& site) {
  const int n = site.ranks;
  const NeighbourWeights weights =
      read_weights(section, NeighbourWeights::Rule::kUniform, "own, received", n, 2);
  std::vector<Round> rounds;
  for (int k = 0; k < log2_up(n); ++k) {
    rounds.push_back(
        neighbour_round(n, weights, [=](int i) { return std::vector{(i + n - (1 << k)) % n}; }));
  }
  return std::make_unique<RoundTable>(n, std::move(rounds));
}

}  // namespace starling
