#include <algorithm>

#include "core/random.h"
#include "topology/builtin.h"
#include "topology/round_table.h"

namespace starling {
namespace {

/// Round k pairs neighbours of random_permutation(seed, kTopology, epoch = k mod 2^32, n): a
/// function of seed and round alone, so that every rank draws the same one.
class RandomMatching : public Topology {
 public:
  RandomMatching(int ranks, std::uint64_t seed) : Topology(ranks), seed_(seed) {}
  std::int64_t period() const override { return 0; }

 protected:
  Round make_round(std::int64_t k) const override {
    const std::vector<std::int64_t> order =
        random_permutation(seed_, RandomStream::kTopology, static_cast<std::uint32_t>(k),
                           static_cast<std::int64_t>(ranks()));
    Round round;
    for (std::size_t i = 0; i + 1 < order.size(); i += 2) {
      round.groups.push_back(
          pair_group(static_cast<int>(order[i]), static_cast<int>(order[i + 1])));
    }
    std::sort(round.groups.begin(), round.groups.end(),
              [](const Group& a, const Group& b) { return a.ranks < b.ranks; });
    return round;
  }

 private:
  std::uint64_t seed_;
};

}  // namespace

/// A random perfect matching every round, as in randomized gossip (Boyd et al. 2006).
std::unique_ptr<Topology> make_random_matching(ConfigSection& section, const RankLayout& site) {
  const std::int64_t seed = section.integer("seed", 0, Range::closed(0, 0x1p53),
                                            "what the pairs of every round are drawn from");
  if (site.ranks == 1) return std::make_unique<RoundTable>(1);
  return std::make_unique<RandomMatching>(site.ranks, static_cast<std::uint64_t>(seed));
}

}  // namespace starling
