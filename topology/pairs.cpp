#include <algorithm>

#include "core/random.h"
#include "topology/builtin.h"
#include "topology/round_table.h"

// Topologies whose rounds are pairs of ranks, or one group of all.
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

/// Made round by round: all n/2 rounds have n²/4 pairs.
class ShiftOne : public Topology {
 public:
  using Topology::Topology;
  std::int64_t period() const override { return ranks() / 2; }

 protected:
  Round make_round(std::int64_t k) const override {
    const int half = ranks() / 2;
    Round round;
    round.groups.reserve(static_cast<std::size_t>(half));
    for (int r = 0; r < half; ++r)
      round.groups.push_back(pair_group(r, half + static_cast<int>((k + r) % half)));
    return round;
  }
};

}  // namespace

/// One group of all ranks: every round is the exact mean, at the cost of an all-reduce.
std::unique_ptr<Topology> make_complete(ConfigSection&, const RankLayout& site) {
  std::vector<Round> rounds(1);
  if (site.ranks > 1) rounds[0].groups.push_back(mean_group(0, site.ranks));
  return std::make_unique<RoundTable>(site.ranks, std::move(rounds));
}

/// Neighbours on a ring, in pairs: rank i even with i + 1 in even rounds, with i - 1 in odd ones.
/// Disagreement shrinks by cos(2π/n) a round.
std::unique_ptr<Topology> make_ring(ConfigSection&, const RankLayout& site) {
  const int n = site.ranks;
  if (n == 1) return std::make_unique<RoundTable>(1);
  need_even("ring", site);
  std::vector<Round> rounds(2);
  for (int i = 0; i < n; i += 2) {
    rounds[0].groups.push_back(pair_group(i, i + 1));
    rounds[1].groups.push_back(pair_group(i, (i + n - 1) % n));
  }
  return std::make_unique<RoundTable>(n, std::move(rounds));
}

/// One-peer exponential graph (Ying et al. 2021, arXiv 2110.13363) in its symmetric form: rank i
/// with i xor 2^k, one dimension of a hypercube a round.
std::unique_ptr<Topology> make_one_peer_exp(ConfigSection&, const RankLayout& site) {
  const int n = site.ranks;
  need_power_of_two("one-peer-exp", site);
  std::vector<Round> rounds;
  for (int bit = 1; bit < n; bit *= 2) {
    Round& round = rounds.emplace_back();
    for (int i = 0; i < n; ++i) {
      if ((i & bit) == 0) round.groups.push_back(pair_group(i, i | bit));
    }
  }
  return std::make_unique<RoundTable>(n, std::move(rounds));
}

/// A random perfect matching every round, as in randomized gossip (Boyd et al. 2006).
std::unique_ptr<Topology> make_random_matching(ConfigSection& section, const RankLayout& site) {
  const std::int64_t seed = section.integer("seed", 0, Range::closed(0, 0x1p53),
                                            "what the pairs of every round are drawn from");
  if (site.ranks == 1) return std::make_unique<RoundTable>(1);
  return std::make_unique<RandomMatching>(site.ranks, static_cast<std::uint64_t>(seed));
}

/// Bagua's shift_one (Gan et al. 2021, arXiv 2107.01499): in round k rank r of the first half pairs
/// with n/2 + (k + r mod n/2) of the second. It mixes at a ring's rate, cos(2π/n) a round.
std::unique_ptr<Topology> make_shift_one(ConfigSection&, const RankLayout& site) {
  const int n = site.ranks;
  if (n == 1) return std::make_unique<RoundTable>(1);
  need_even("shift-one", site);
  return std::make_unique<ShiftOne>(n);
}

}  // namespace starling
