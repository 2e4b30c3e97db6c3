#pragma once

#include <cstdint>
#include <string>

#include "apps/training/schedules/run_length.h"
#include "core/config.h"

namespace starling {

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
