#include "apps/training/schedules/interval.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace starling {

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
