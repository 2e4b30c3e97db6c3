#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/algorithms/bucketwise.h"

namespace starling {

/// The keys of gossip, also for algorithms that contain it.
struct GossipSettings {
  bool adapt_then_combine = false;  ///< order atc; otherwise awc, which overlaps with computation
  std::int64_t interval = 1;        ///< steps from one exchange to the next
  /// Every global_every-th exchange is the mean over all ranks; 0: never
  std::int64_t global_every = 0;
  /// With every mix_states-th exchange the optimizer's states are mixed, too; 0: never
  std::int64_t mix_states = 0;
  double mixing = 1.0;  ///< α: c = (1-α)·x + α·mix
  /// δ of ConsensusControl; 0: off
  double global_above = 0.0;
  std::int64_t check_every = 50;  ///< of ConsensusControl, in steps
  /// With power > 0, α = max(least, (η / largest η so far)^power) instead
  double power = 0.0, least = 0.0;
};
GossipSettings read_gossip(ConfigSection& config);
/// The states of gossip with these settings.
std::vector<KeptState> states_of(const GossipSettings& settings);
std::vector<StepKey> step_keys_of(const GossipSettings& settings);
AlgorithmGrowth growth_of(const GossipSettings& settings);
/// `skips_exchange(t)`: whether there is no exchange after step t, whose round is counted all the
/// same; null: never. `control`: the state for ConsensusControl, if states_of() has one.
std::unique_ptr<Algorithm> make_gossip(const AlgorithmSite& site, const GossipSettings& settings,
                                       std::function<bool(std::int64_t)> skips_exchange = {},
                                       Tensor control = {});

/// Which exchange (counted from 0; -1: none) a step uses, and which starts after it.
struct ExchangeSteps {
  std::int64_t interval = 1;
  /// Order awc: step t mixes the exchange started after step t - 1, if the interval divides t.
  std::int64_t used_in(std::int64_t t) const {
    return t >= 1 && t % interval == 0 ? t / interval - 1 : -1;
  }
  std::int64_t started_after(std::int64_t t) const { return used_in(t + 1); }
};

}  // namespace starling
