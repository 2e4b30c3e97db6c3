#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/algorithm.h"
#include "comm/planner/predict.h"

namespace starling {

/// An algorithm with its topology and bucket size, and the predicted performance.
struct PlannedChoice {
  std::string algorithm, title;  ///< AlgorithmPlan::name and label()
  std::string topology;          ///< its name; "" for an algorithm without one
  double bucket_mb = 25;
  nlohmann::json keys = {};   ///< of the algorithm, apart from defaults
  std::string exchange = {};  ///< `sync.exchange`; empty: the default
  Prediction prediction;
  /// Rounds until all ranks agree to 1e-12; empty if more than were examined.
  std::optional<std::int64_t> rounds_to_consensus;
  /// Fraction of a disagreement that remains after a round (geometric mean); 0: none
  double rate = 0.0;
  /// Disagreement shrinks by a factor of e^mixing per second; infinite if ranks always agree
  double mixing = 0.0;
  /// Steps to reach a loss, relative to all-reduce: expected_steps(); infinite if unknown
  double steps = 1.0;
  /// Estimated seconds to the loss that all-reduce reaches in one step.
  double seconds() const { return prediction.step * steps; }
  bool known() const { return std::isfinite(steps); }
  std::string label() const { return topology.empty() ? title : topology; }
  /// Algorithm, keys and exchange: "gossip, interval 4, int8".
  std::string method() const;
  bool same_but_size(const PlannedChoice& other) const {
    return method() == other.method() && topology == other.topology;
  }
};

/// The expected fraction of additional steps to reach a loss, because ranks compute gradients at
/// their own parameters instead of the mean: AlgorithmCost::disagreement times a constant measured
/// in our runs (docs/benchmarks.md, "What mixing costs in learning"). For evenly distributed data.
/// Rounding by int8 and bf16 is neglected: its effect was within the variation between seeds.
double expected_steps(double disagreement, int ranks);

struct Advice {
  std::vector<PlannedChoice> choices;  ///< fastest first
  /// Other algorithms, keys and exchanges, each with its best choice; shortest time to a loss first
  std::vector<PlannedChoice> methods;
  /// With `methods`: what would be soonest at another bandwidth of the links between hosts, in
  /// bytes a second
  std::vector<std::pair<double, PlannedChoice>> elsewhere;
  std::size_t best = 0;  ///< index of the recommendation in `choices`
  std::string reason;    ///< one line
  double compute = 0.0;  ///< seconds of a step without communication
  /// Of a rank's matrix products in updates (Muon), and the seconds of `compute` that they take
  double product_flops = 0.0;
  double product_seconds = 0.0;
  double noise = 0.0;  ///< the larger of StepModel's and NetworkModel's
};

/// Default bucket size in MiB.
inline constexpr double kUsualBucket = 25.0;
inline constexpr const char* kUsualTopology = "base-2";

/// Bucket sizes to try, in MiB.
std::vector<double> usual_bucket_sizes();

/// Predicts all-reduce and `mixing` (default: gossip) on every topology that needs no further keys
/// for this network. Recommends the fastest mixing of those within 2 % of the shortest expected
/// time to a loss, so that all-reduce, which is exact, wins ties; of equally good bucket sizes, the
/// nearest to the default. `methods`: also computes Advice::methods and Advice::elsewhere.
Advice advise(const NetworkModel& network, const StepModel& step,
              const std::vector<double>& bucket_mb, const AlgorithmPlan* mixing = nullptr,
              bool methods = false);

/// Recommends a bucket size for a given algorithm and topology (null if it has none).
Advice advise_for(const AlgorithmPlan& algorithm, const Topology* topology, const std::string& name,
                  const NetworkModel& network, const StepModel& step,
                  const std::vector<double>& bucket_mb);

/// If the machine was busy during the measurement: a warning, with choices that may be as good as
/// the best, and `remedy`. Otherwise empty.
std::string disturbance_text(const Advice& advice, std::string_view remedy);
/// The table, the recommendation and its reason. `all`: every choice, otherwise one row per
/// topology.
std::string advice_text(const Advice& advice, bool all);
std::string advice_json(const Advice& advice);

}  // namespace starling
