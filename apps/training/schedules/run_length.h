#pragma once

#include <cstdint>
#include <vector>

#include "apps/data/sampler.h"
#include "core/config.h"

namespace starling {

/// A part of a run with one number of ranks and one `batch_size`: a run that never changed them has
/// one, which begins at step 0.
struct Stretch {
  std::int64_t step = 0;  ///< the first
  int ranks = 1;
  std::int64_t batch_size = 1;  ///< of one micro-batch on one rank
  /// Samples of all ranks' micro-batches that the config asks for, which other ranks keep as far as
  /// they can; 0: those of the first stretch
  std::int64_t wanted = 0;
  friend bool operator==(const Stretch&, const Stretch&) = default;
};

/// Where the steps of a run lie in its epochs. Where ranks went, or came, in the midst of an epoch,
/// those that go on with it share what is left of its samples; an epoch has as many updates as all
/// ranks' batches allow then.
class RunLength {
 public:
  /// `samples`: of the training set. The length is `steps`, or `epochs` where that is 0. Stretches
  /// ascend in steps, from 0 on; the last holds to the end.
  RunLength(std::vector<Stretch> stretches, std::int64_t samples, std::int64_t accumulate,
            double epochs, std::int64_t steps);

  /// Micro-batches of one rank in a whole epoch, of the last stretch
  std::int64_t batches_per_epoch = 0;
  std::int64_t steps_per_epoch = 0;  ///< updates, of the last stretch
  std::int64_t total_steps = 0;

  /// An epoch, and updates of it before this step: in this stretch, where the epoch began in
  /// another.
  struct Place {
    std::int64_t epoch = 0, update = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };
  Place place(std::int64_t step) const;
  /// Epochs done before a step, with the part of the one that goes on.
  double epochs_at(std::int64_t step) const;
  /// The step that an epoch begins with; within an epoch the first at or after that point.
  std::int64_t step_of_epoch(double epoch) const;
  /// The epochs done after `step` updates, where it is the last of an epoch; 0 elsewhere.
  std::int64_t whole_epochs(std::int64_t step) const;
  /// What the schedule is asked for: where a step lies in the run's first plan, of first_total()
  /// steps, first_steps_per_epoch() to an epoch.
  std::int64_t planned_step(std::int64_t step) const;
  std::int64_t first_total() const { return first_total_; }
  std::int64_t first_steps_per_epoch() const { return parts_.front().steps_per_epoch; }
  /// Samples that all ranks trained on in the first `step` steps.
  std::int64_t samples_seen(std::int64_t step) const;

  /// The epoch that the last stretch goes on with; what earlier ones took of it, nothing where it
  /// begins with it; and how many micro-batches each rank makes of its rest.
  std::int64_t continued_epoch() const { return parts_.back().epoch; }
  std::vector<TakenBatches> taken() const;
  std::int64_t rest_batches() const { return parts_.back().rest * accumulate_; }
  /// The samples of an update, over those that the config asks for.
  double batch_ratio(std::int64_t step) const;
  const std::vector<Stretch>& stretches() const { return stretches_; }

 private:
  struct Part {
    Stretch stretch;
    std::int64_t epoch = 0;  ///< the first
    std::int64_t seen = 0;   ///< samples of it that are gone before the stretch
    std::int64_t rest = 0;   ///< updates in what is left of it
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

/// How long a run is, and what its updates are made of.
struct LengthSettings {
  std::int64_t batch_size = 128, accumulate = 1;
  double epochs = 0.0;     ///< a part of one too; 0: `steps`
  std::int64_t steps = 0;  ///< 0: `epochs`
  /// Of a run that went on with other numbers of ranks; empty: it did not
  std::vector<Stretch> stretches = {};
};
LengthSettings read_length(ConfigSection& root);
/// Length of such a run, whose stretches are its own, or one on all of these ranks.
RunLength run_length(const LengthSettings& settings, std::int64_t samples, int ranks);

/// The step that an epoch begins with, of so many steps each; within an epoch the first at or after
/// that point.
std::int64_t step_of_epoch(double epoch, std::int64_t steps_per_epoch);

}  // namespace starling
