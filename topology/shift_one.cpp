#include "topology/builtin.h"
#include "topology/round_table.h"

namespace starling {
namespace {

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

/// Bagua's shift_one (Gan et al. 2021, arXiv 2107.01499): in round k rank r of the first half pairs
/// with n/2 + (k + r mod n/2) of the second. It mixes at a ring's rate, cos(2π/n) a round.
std::unique_ptr<Topology> make_shift_one(ConfigSection&, const RankLayout& site) {
  const int n = site.ranks;
  if (n == 1) return std::make_unique<RoundTable>(1);
  need_even("shift-one", site);
  return std::make_unique<ShiftOne>(n);
}

}  // namespace starling
