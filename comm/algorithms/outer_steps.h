#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "comm/algorithm.h"
#include "comm/algorithms/averages.h"
#include "comm/algorithms/coded_mean.h"
#include "core/config.h"
#include "kernels/optimizer.h"

namespace starling {

/// Outer steps, which diloco and gossip_diloco have in common. Bucket b of B is in fragment f =
/// floor(bF/B); its outer steps come after steps t with t + 1 ≡ (f+1)H/F (mod H).
struct OuterSettings {
  std::int64_t period = 500, fragments = 1;
  double lr = 0.7, momentum = 0.9;
  bool nesterov = true;
  StatesAt states = StatesAt::kLocal;

  /// Whether bucket b of `buckets` takes an outer step after step t.
  bool meets(int b, int buckets, std::int64_t t) const {
    return since_first(b, buckets, t) % period == 0;
  }
  /// How many outer steps the bucket has taken in the first t steps.
  std::int64_t taken(int b, int buckets, std::int64_t t) const {
    const std::int64_t since = since_first(b, buckets, t - 1);
    return since < 0 ? 0 : since / period + 1;
  }

 private:
  /// Steps from the bucket's first outer step to step t; negative before it.
  std::int64_t since_first(int b, int buckets, std::int64_t t) const {
    const std::int64_t fragment = b * fragments / buckets;
    return t + 1 - (fragment + 1) * period / fragments;
  }
};

/// Reads and checks `period`, `outer_lr`, `outer_momentum`, `outer_nesterov`, `fragments`.
OuterSettings read_outer_steps(ConfigSection& config, std::int64_t usual_period);
/// Refuses states that are reset where fragments take turns.
void check_outer_states(const ConfigSection& config, const OuterSettings& settings);

/// What was measured of outer steps' learning: a mean over all ranks, `gossip`, or gossip with
/// mix_differences, by this exchange. `share`: of a sparse one, or consensus_step of gossip.
enum class OuterMix : std::uint8_t { kAll, kGossip, kGossipOfDifferences };
std::optional<AlgorithmCost::Learning> measured_learning(OuterMix mix, const MixerKind& exchange,
                                                         double share = 1.0);
/// Sets it, and that the planner does not know what was not measured.
void set_learning(AlgorithmCost& cost, std::optional<AlgorithmCost::Learning> learning);

/// The outer step as a rule on x, with the states {s, a} and the gradient Δ / share: s' = μs + Δ,
/// a' = a - ν(nesterov ? Δ + μs' : s'), x' = (1-blend)a' + blend·x.
std::unique_ptr<OptimizerRule> make_outer_rule(const OuterSettings& settings, double share,
                                               double blend);

/// diloco's keys `quorum`, `grace_ms` and `late`.
struct DiLoCoQuorum {
  std::int64_t ranks = 0;  ///< q; 0: all are waited for
  double grace_seconds = 1.0;
  bool carry = false;  ///< a difference that was late counts in the rank's next one
};

/// DiLoCo whose outer steps wait for a quorum (quorum.h). Kept: the anchor, s, and with `carry` a
/// difference and its weights, of each fragment one, fp64; with error feedback the residual.
std::function<std::unique_ptr<Algorithm>(const AlgorithmSite&)> maker_of_quorum_diloco(
    const OuterSettings& settings, double blend, const DiLoCoQuorum& quorum,
    const DifferenceCode& code);

}  // namespace starling
