#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/data/sampler.h"
#include "core/config.h"

namespace starling {

/// A part of a run with constant number of ranks and batch size; most runs have one.
struct Stretch {
  std::int64_t step = 0;  ///< first step
  int ranks = 1;
  std::int64_t batch_size = 1;  ///< of one micro-batch on one rank
  /// Samples of all ranks' micro-batches by the config; 0: those of the first stretch
  std::int64_t wanted = 0;
  /// Ranks joined or were lost in the same processes: the algorithm continued, without a restart
  bool joined = false;
  friend bool operator==(const Stretch&, const Stretch&) = default;
};

/// Maps the steps of a run to epochs. If the number of ranks changed within an epoch, the new ranks
/// share its remaining samples, which determines the number of its updates.
class RunLength {
 public:
  /// `samples`: of the training set. The length is `steps` or, if that is 0, `epochs`. Stretches
  /// are in ascending order of steps, starting at 0; the last one continues to the end.
  RunLength(std::vector<Stretch> stretches, std::int64_t samples, std::int64_t accumulate,
            double epochs, std::int64_t steps);

  std::int64_t steps_per_epoch = 0;  ///< updates, of the last stretch
  std::int64_t total_steps = 0;

  /// An epoch, and the number of its updates before this step, not counting earlier stretches.
  struct Place {
    std::int64_t epoch = 0, update = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };
  Place place(std::int64_t step) const { return place_in(part_at(step), step); }
  /// Epochs before a step, including the fraction of the current one.
  double epochs_at(std::int64_t step) const;
  /// The first step at or after a point in epochs.
  std::int64_t step_of_epoch(double epoch) const;
  /// The number of epochs after `step` updates if an epoch ends there; otherwise 0.
  std::int64_t whole_epochs(std::int64_t step) const;
  /// The argument for the schedule: the step's position in the run's original plan.
  std::int64_t planned_step(std::int64_t step) const;
  std::int64_t first_total() const { return first_total_; }
  std::int64_t first_steps_per_epoch() const { return parts_.front().steps_per_epoch; }
  /// Samples used by all ranks in the first `step` steps.
  std::int64_t samples_seen(std::int64_t step) const;

  /// The epoch that the last stretch continues; what earlier stretches used of it, nothing if it
  /// starts the epoch; and the number of micro-batches of each rank in the rest of it.
  std::int64_t continued_epoch() const { return parts_.back().epoch; }
  std::vector<TakenBatches> taken() const;
  std::int64_t rest_batches() const { return parts_.back().rest * accumulate_; }
  /// Samples of an update / those according to the config.
  double batch_ratio(std::int64_t step) const;
  const std::vector<Stretch>& stretches() const { return stretches_; }

 private:
  struct Part {
    Stretch stretch;
    std::int64_t epoch = 0;  ///< the first
    std::int64_t seen = 0;   ///< samples of it used before the stretch
    std::int64_t rest = 0;   ///< updates in the rest of it
    std::int64_t steps_per_epoch = 0;
    double planned = 0.0;  ///< planned_step() of the first step, unrounded
  };
  const Part& part_at(std::int64_t step) const;
  static Place place_in(const Part& part, std::int64_t step);
  double planned_in(const Part& part, std::int64_t step) const;
  double begin_of(const Part& part) const;

  std::vector<Stretch> stretches_;
  std::vector<Part> parts_;
  std::int64_t samples_ = 0, accumulate_ = 1, first_total_ = 0;
  bool by_epochs_ = false;
};

/// The length of a run, and the composition of its updates.
struct LengthSettings {
  std::int64_t batch_size = 128, accumulate = 1;
  double epochs = 0.0;     ///< may be fractional; 0: `steps`
  std::int64_t steps = 0;  ///< 0: `epochs`
  /// If the run has changed its number of ranks; otherwise empty
  std::vector<Stretch> stretches = {};
};
LengthSettings read_length(ConfigSection& root);
/// The length of such a run, with the settings' stretches or a single one with `ranks`.
RunLength run_length(const LengthSettings& settings, std::int64_t samples, int ranks);

/// The first step at or after a point in epochs of `steps_per_epoch`.
std::int64_t step_of_epoch(double epoch, std::int64_t steps_per_epoch);

/// Intervals of a repeated action, in epochs and in steps; 0: never.
struct Interval {
  std::int64_t every_epochs = 0, every_steps = 0;
  bool any() const { return every_epochs > 0 || every_steps > 0; }
  /// Whether it is due after `step` updates.
  bool due(std::int64_t step, const RunLength& length) const;
  /// The first step after `step` at which it is due; INT64_MAX: never.
  std::int64_t first_due(std::int64_t step, const RunLength& length) const;
};

/// Reads `every_epochs` and `every_steps`. `what`: the action, for documentation.
Interval read_interval(ConfigSection& section, const std::string& what);

}  // namespace starling
