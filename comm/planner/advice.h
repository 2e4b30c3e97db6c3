#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "comm/algorithm.h"
#include "comm/planner/predict.h"

namespace starling {

/// One way to train: an algorithm and its topology with a bucket size, and what it will be like.
struct PlannedChoice {
  std::string algorithm, title;  ///< AlgorithmPlan::name and label()
  std::string topology;          ///< its name; "" for an algorithm without one
  double bucket_mb = 25;
  nlohmann::json keys = {};   ///< of the algorithm, beside the default ones
  std::string exchange = {};  ///< `sync.exchange` where it encodes; empty: nothing said
  Prediction prediction;
  /// Rounds until all ranks agree to 1e-12, if there are such within the rounds looked at.
  std::optional<std::int64_t> rounds_to_consensus;
  /// Part that remains of a disagreement after one round, the geometric mean; 0: nothing
  double rate = 0.0;
  /// Powers of e by which disagreement shrinks in a second; infinite without a topology: all agree
  double mixing = 0.0;
  /// Steps to a loss for each that all-reduce takes: expected_steps(); infinite where that is not
  /// known
  double steps = 1.0;
  /// Seconds to the loss that all-reduce has after a step, about.
  double seconds() const { return prediction.step * steps; }
  bool known() const { return std::isfinite(steps); }
  std::string label() const { return topology.empty() ? title : topology; }
  /// The algorithm with its keys and what it sends: "gossip, interval 4, int8".
  std::string method() const;
  bool same_but_size(const PlannedChoice& other) const {
    return method() == other.method() && topology == other.topology;
  }
};

/// The part by which more steps are expected to a loss, because ranks take gradients where they are
/// and not at the mean: AlgorithmCost's disagreement, times a constant that our own runs gave
/// (docs/benchmarks.md, "What mixing costs in learning"). For data that are spread evenly; int8's
/// and bf16's rounding is left out, as runs with and without it did not differ by more than their
/// seeds.
double expected_steps(double disagreement, int ranks);

struct Advice {
  std::vector<PlannedChoice> choices;  ///< fastest first
  /// Other algorithms, keys and exchanges, each with what fits it best; soonest to a loss first
  std::vector<PlannedChoice> methods;
  std::size_t best = 0;  ///< index of the recommendation, of `choices`
  std::string reason;    ///< one line
  double compute = 0.0;  ///< seconds of a step without communication
  /// Of an update's products of whole matrices (Muon), and the seconds of `compute` that they take
  double product_flops = 0.0;
  double product_seconds = 0.0;
  double noise = 0.0;  ///< of what was measured, the larger of StepModel's and NetworkModel's
};

/// What a config has that does not say it; buckets in MiB.
inline constexpr double kUsualBucket = 25.0;
inline constexpr const char* kUsualTopology = "base-2";

/// Bucket sizes that are tried where none is given, in MiB.
std::vector<double> usual_bucket_sizes();

/// Predicts the algorithms that keep the mathematics (what gossip's default keys do, or `mixing`;
/// and all-reduce) on every topology that takes this network without further keys. The
/// recommendation: of what is within 2 % of the least expected time to a loss, what mixes fastest;
/// all-reduce is exact and so wins such ties. Of bucket sizes that are equal, the nearest to the
/// default. `methods`: Advice::methods too.
Advice advise(const NetworkModel& network, const StepModel& step,
              const std::vector<double>& bucket_mb, const AlgorithmPlan* mixing = nullptr,
              bool methods = false);

/// Advice over bucket sizes alone, for an algorithm and a topology (null where it has none) that
/// are given.
Advice advise_for(const AlgorithmPlan& algorithm, const Topology* topology, const std::string& name,
                  const NetworkModel& network, const StepModel& step,
                  const std::vector<double>& bucket_mb);

/// A line where the machine was busy while it was measured, with what may be as good as the best;
/// else empty.
std::string disturbance_text(const Advice& advice);
/// The table, the recommendation and its reason, as text: every choice, or one row for each
/// topology.
std::string advice_text(const Advice& advice, bool all);
std::string advice_json(const Advice& advice);

}  // namespace starling
