#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/algorithms/bucketwise.h"

namespace starling {

/// The keys of gossip, which algorithms that have it inside take too.
struct GossipSettings {
  bool adapt_then_combine = false;  ///< order atc; otherwise awc, which combines while it computes
  std::int64_t interval = 1;        ///< steps from one exchange to the next
  /// Exchanges, of which the last is the mean over all ranks; 0: none is
  std::int64_t global_every = 0;
  /// Exchanges, with the last of which the optimizer's states are mixed too; 0: never
  std::int64_t mix_states = 0;
  double mixing = 1.0;  ///< α: c = (1-α)·x + α·(the mix)
  /// Disagreement over which an exchange is global (ConsensusControl); 0: off
  double global_above = 0.0;
  std::int64_t check_every = 50;  ///< steps from one look at it to the next
  /// With power > 0, α = max(least, (η / largest η so far)^power) instead
  double power = 0.0, least = 0.0;
};
GossipSettings read_gossip(ConfigSection& config);
/// What gossip with these settings keeps, and more that its plan needs.
std::vector<KeptState> states_of(const GossipSettings& settings);
std::vector<StepKey> step_keys_of(const GossipSettings& settings);
AlgorithmGrowth growth_of(const GossipSettings& settings);
/// `quiet(t)`: after step t nothing is exchanged, though its round counts; empty: never. `control`:
/// the tensor of states_of(), where there is one.
std::unique_ptr<Algorithm> make_gossip(const AlgorithmSite& site, const GossipSettings& settings,
                                       std::function<bool(std::int64_t)> quiet = {},
                                       Tensor control = {});

/// When exchanges happen: which round a step uses, and which starts after it; -1: none. Rounds
/// count exchanges.
struct ExchangeSteps {
  std::int64_t interval = 1;
  /// Combined while computing: step t mixes what started after step t - 1, where the interval
  /// divides t.
  std::int64_t used_in(std::int64_t t) const {
    return t >= 1 && t % interval == 0 ? t / interval - 1 : -1;
  }
  std::int64_t started_after(std::int64_t t) const { return used_in(t + 1); }
};

}  // namespace starling
