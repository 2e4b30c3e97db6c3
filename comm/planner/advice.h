#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/planner/predict.h"

namespace starling {

/// One way to train: a topology (or gradient all-reduce) with a bucket size, and what it will be like.
struct PlannedChoice {
  std::string topology;  ///< its name; "" for all-reduce
  double bucket_mb = 25;
  Prediction prediction;
  /// Rounds until all ranks agree to 1e-12, if there are such within the rounds looked at.
  std::optional<std::int64_t> rounds_to_consensus;
  double rate = 0.0;    ///< what remains of a disagreement after one round, the geometric mean; 0: nothing
  double mixing = 0.0;  ///< powers of e by which disagreement shrinks in a second; infinite for all-reduce
  std::string label() const { return topology.empty() ? "all-reduce" : topology; }
};

struct Advice {
  std::vector<PlannedChoice> choices;  ///< every topology × bucket size, all-reduce too, fastest first
  std::size_t best = 0;                ///< index of the recommendation
  std::string reason;                  ///< one line
  double compute = 0.0;                ///< seconds of a step without communication
};

/// Bucket sizes that are tried where none is given, in MiB.
std::vector<double> usual_bucket_sizes();

/// Predicts every topology that takes this network without further keys, and all-reduce. The recommendation: of what is within 2 % of the
/// fastest step, what mixes fastest; all-reduce is exact and so wins such ties.
Advice advise(const NetworkModel& network, const StepModel& step, const std::vector<double>& bucket_mb);

/// The same for one topology that is given (null: all-reduce), over bucket sizes alone.
Advice advise_for(const Topology* topology, const std::string& name, const NetworkModel& network, const StepModel& step,
                  const std::vector<double>& bucket_mb);

/// Of one topology's choices ("": all-reduce) the fastest, and of equals the bucket size nearest to the default.
std::size_t best_size(const Advice& advice, const std::string& topology);

/// The table, the recommendation and its reason, as text: every choice, or one row for each topology.
std::string advice_text(const Advice& advice, bool all);
std::string advice_json(const Advice& advice);

}  // namespace starling
