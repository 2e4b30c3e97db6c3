#include "apps/training/schedules/run_length.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"

namespace starling {

std::int64_t step_of_epoch(double epoch, std::int64_t steps_per_epoch) {
  // 1.1 of 10 is 11
  return static_cast<std::int64_t>(
      std::ceil(epoch * static_cast<double>(steps_per_epoch) * (1.0 - 1e-12)));
}

RunLength::RunLength(std::vector<Stretch> stretches, std::int64_t samples, std::int64_t accumulate,
                     double epochs, std::int64_t steps)
    : stretches_(std::move(stretches)),
      samples_(samples),
      accumulate_(accumulate),
      by_epochs_(steps <= 0) {
  require(!stretches_.empty() && stretches_.front().step == 0, "run length",
          "the first of {} stretches does not begin at step 0", stretches_.size());
  for (const Stretch& stretch : stretches_) {
    Part part{.stretch = stretch};
    if (!parts_.empty()) {
      const Part& before = parts_.back();
      require(stretch.step > before.stretch.step, "run length",
              "a stretch begins at step {}, the one before it at step {}", stretch.step,
              before.stretch.step);
      const Place place = place_in(before, stretch.step);
      part.epoch = place.epoch;
      part.seen = place.update * accumulate * before.stretch.ranks * before.stretch.batch_size;
      if (place.epoch == before.epoch) part.seen += before.seen;
      part.planned = planned_in(before, stretch.step);
    }
    const auto updates = [&](std::int64_t of) {
      return of / stretch.ranks / stretch.batch_size / accumulate;
    };
    part.steps_per_epoch = updates(samples);
    part.rest = updates(samples - part.seen);
    parts_.push_back(part);
  }
  steps_per_epoch = parts_.back().steps_per_epoch;
  total_steps = by_epochs_ ? step_of_epoch(epochs) : steps;
  first_total_ =
      by_epochs_ ? starling::step_of_epoch(epochs, parts_.front().steps_per_epoch) : steps;
}

const RunLength::Part& RunLength::part_at(std::int64_t step) const {
  std::size_t k = parts_.size() - 1;
  while (k > 0 && parts_[k].stretch.step > step) --k;
  return parts_[k];
}

RunLength::Place RunLength::place_in(const Part& part, std::int64_t step) {
  const std::int64_t update = step - part.stretch.step;
  if (update < part.rest || part.steps_per_epoch == 0) return {part.epoch, update};
  return {part.epoch + 1 + (update - part.rest) / part.steps_per_epoch,
          (update - part.rest) % part.steps_per_epoch};
}

double RunLength::begin_of(const Part& part) const {
  return static_cast<double>(part.epoch) +
         static_cast<double>(part.seen) / static_cast<double>(samples_);
}

double RunLength::epochs_at(std::int64_t step) const {
  const Part& part = part_at(step);
  if (part.stretch.step == 0)
    return static_cast<double>(step) / static_cast<double>(part.steps_per_epoch);
  const Place at = place_in(part, step);
  const double begin = begin_of(part), update = static_cast<double>(at.update);
  if (at.epoch > part.epoch)
    return static_cast<double>(at.epoch) + update / static_cast<double>(part.steps_per_epoch);
  return begin +
         (static_cast<double>(part.epoch + 1) - begin) * update / static_cast<double>(part.rest);
}

std::int64_t RunLength::step_of_epoch(double epoch) const {
  std::size_t k = parts_.size() - 1;
  while (k > 0 && begin_of(parts_[k]) > epoch) --k;
  const Part& part = parts_[k];
  std::int64_t step = part.stretch.step;
  const auto next = static_cast<double>(part.epoch + 1);
  if (k == 0) {
    step = starling::step_of_epoch(epoch, part.steps_per_epoch);
  } else if (epoch < next) {
    const double begin = begin_of(part);
    step += starling::step_of_epoch((epoch - begin) / (next - begin), part.rest);
  } else {
    step += part.rest + starling::step_of_epoch(epoch - next, part.steps_per_epoch);
  }
  return k + 1 < parts_.size() ? std::min(step, parts_[k + 1].stretch.step) : step;
}

std::int64_t RunLength::whole_epochs(std::int64_t step) const {
  const Part& part = part_at(step);
  if (step == part.stretch.step && part.seen > 0) return 0;
  const Place at = place_in(part, step);
  return at.update == 0 ? at.epoch : 0;
}

double RunLength::planned_in(const Part& part, std::int64_t step) const {
  const auto done = static_cast<double>(step - part.stretch.step);
  // A run whose length is in steps counts these; of one in epochs the same share is over.
  if (!by_epochs_ || part.stretch.step == 0 || part.steps_per_epoch == 0)
    return part.planned + done;
  return part.planned + done * static_cast<double>(first_steps_per_epoch()) /
                            static_cast<double>(part.steps_per_epoch);
}

std::int64_t RunLength::planned_step(std::int64_t step) const {
  const Part& part = part_at(step);
  if (part.stretch.step == 0) return step;
  return std::clamp<std::int64_t>(std::llround(planned_in(part, step)), 0,
                                  std::max<std::int64_t>(first_total_ - 1, 0));
}

double RunLength::batch_ratio(std::int64_t step) const {
  const Stretch &now = part_at(step).stretch, &first = stretches_.front();
  const std::int64_t wanted = now.wanted > 0 ? now.wanted : first.ranks * first.batch_size;
  return static_cast<double>(now.ranks * now.batch_size) / static_cast<double>(wanted);
}

std::int64_t RunLength::samples_seen(std::int64_t step) const {
  std::int64_t seen = 0;
  for (std::size_t k = 0; k < parts_.size() && parts_[k].stretch.step < step; ++k) {
    const Stretch& stretch = parts_[k].stretch;
    const std::int64_t end =
        k + 1 < parts_.size() ? std::min(step, parts_[k + 1].stretch.step) : step;
    seen += (end - stretch.step) * accumulate_ * stretch.ranks * stretch.batch_size;
  }
  return seen;
}

std::vector<TakenBatches> RunLength::taken() const {
  std::vector<TakenBatches> taken;
  const std::int64_t epoch = parts_.back().epoch;
  for (std::size_t k = parts_.size() - 1; k > 0; --k) {
    // The part began with a later epoch, so nothing before it was of this one.
    if (parts_[k].epoch != epoch) break;
    const Stretch& before = parts_[k - 1].stretch;
    const Place end = place_in(parts_[k - 1], parts_[k].stretch.step);
    if (end.epoch != epoch) break;
    if (end.update > 0)
      taken.push_back({before.ranks, before.batch_size, end.update * accumulate_});
    if (parts_[k - 1].epoch != epoch) break;
  }
  std::ranges::reverse(taken);
  return taken;
}

LengthSettings read_length(ConfigSection& root) {
  LengthSettings settings;
  root.read("batch_size", settings.batch_size, Range::closed(1, 1 << 24),
            "samples of one micro-batch on one rank");
  root.read("accumulate", settings.accumulate, Range::closed(1, 1 << 20),
            "micro-batches whose gradients add up to one update");
  if (root.has("epochs") && root.has("steps"))
    root.error("steps", "is given together with epochs; allowed: one of them");
  if (!root.has("epochs") && !root.has("steps"))
    root.missing("epochs", "a number, or steps in its place", "steps");
  settings.epochs = root.number_if_given("epochs", Range{0.0, 1e9, true, false},
                                         "length of the run in epochs; this or `steps`")
                        .value_or(settings.epochs);
  if (settings.epochs == std::floor(settings.epochs) && settings.epochs > 0.0)
    root.resolve("epochs", static_cast<std::int64_t>(settings.epochs));
  settings.steps = root.integer_if_given("steps", Range::closed(1, 1e12),
                                         "length of the run in updates, instead of `epochs`")
                       .value_or(settings.steps);
  return settings;
}

RunLength run_length(const LengthSettings& settings, std::int64_t samples, int ranks) {
  std::vector<Stretch> stretches = settings.stretches;
  if (stretches.empty()) stretches = {{.ranks = ranks, .batch_size = settings.batch_size}};
  return {std::move(stretches), samples, settings.accumulate, settings.epochs, settings.steps};
}

Interval read_interval(ConfigSection& section, const std::string& what) {
  Interval interval{.every_epochs = 1};
  const bool steps_alone = section.has("every_steps") && !section.has("every_epochs");
  section.read("every_epochs", interval.every_epochs, Range::at_least(0),
               what + " every so many epochs; 0: never");
  section.read(
      "every_steps", interval.every_steps, Range::at_least(0),
      what + " every so many steps; 0: never; given alone, it replaces the default `every_epochs`");
  if (steps_alone) {
    interval.every_epochs = 0;
    section.resolve("every_epochs", 0);
  }
  return interval;
}

bool Interval::due(std::int64_t step, const RunLength& length) const {
  if (every_steps > 0 && step % every_steps == 0) return true;
  const std::int64_t epochs = every_epochs > 0 ? length.whole_epochs(step) : 0;
  return epochs > 0 && epochs % every_epochs == 0;
}

std::int64_t Interval::first_due(std::int64_t step, const RunLength& length) const {
  std::int64_t first = INT64_MAX;
  if (every_steps > 0) first = step / every_steps * every_steps + every_steps;
  if (every_epochs > 0) {
    const std::int64_t next = length.place(step).epoch / every_epochs * every_epochs + every_epochs;
    first = std::min(first, length.step_of_epoch(static_cast<double>(next)));
  }
  return first;
}

}  // namespace starling
