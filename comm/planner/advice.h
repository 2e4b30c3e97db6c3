#pragma once

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
  Prediction prediction;
  /// Rounds until all ranks agree to 1e-12, if there are such within the rounds looked at.
  std::optional<std::int64_t> rounds_to_consensus;
  double rate = 0.0;    ///< what remains of a disagreement after one round, the geometric mean; 0: nothing
  double mixing = 0.0;  ///< powers of e by which disagreement shrinks in a second; infinite without a topology: all agree
  std::string label() const { return topology.empty() ? title : topology; }
  bool same_but_size(const PlannedChoice& other) const { return algorithm == other.algorithm && topology == other.topology; }
};

struct Advice {
  std::vector<PlannedChoice> choices;  ///< fastest first
  std::size_t best = 0;                ///< index of the recommendation
  std::string reason;                  ///< one line
  double compute = 0.0;                ///< seconds of a step without communication
};

/// Bucket sizes that are tried where none is given, in MiB.
std::vector<double> usual_bucket_sizes();

/// Predicts every algorithm that says what it takes, on every topology that takes this network without further keys; with `mixing`, of
/// those that have a topology, this one alone. The recommendation: of what is within 2 % of the fastest step, what mixes fastest;
/// all-reduce is exact and so wins such ties. Of bucket sizes that are equal, the nearest to the default.
Advice advise(const NetworkModel& network, const StepModel& step, const std::vector<double>& bucket_mb,
              const AlgorithmPlan* mixing = nullptr);

/// The same for an algorithm and a topology (null where it has none) that are given, over bucket sizes alone.
Advice advise_for(const AlgorithmPlan& algorithm, const Topology* topology, const std::string& name, const NetworkModel& network,
                  const StepModel& step, const std::vector<double>& bucket_mb);

/// The table, the recommendation and its reason, as text: every choice, or one row for each topology.
std::string advice_text(const Advice& advice, bool all);
std::string advice_json(const Advice& advice);

}  // namespace starling
