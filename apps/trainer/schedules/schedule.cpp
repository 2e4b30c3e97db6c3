#include "apps/trainer/schedules/schedule.h"

#include <algorithm>
#include <cmath>

#include "apps/trainer/schedules/warmup.h"

namespace starling {

ScheduleRegistry& schedules() {
  static ScheduleRegistry registry("schedule");
  return registry;
}

void register_builtin_schedules() {
  static const bool once = [] {
    register_constant_schedule();
    register_cosine_schedule();
    register_multistep_schedule();
    register_step_schedule();
    register_linear_schedule();
    register_inverse_sqrt_schedule();
    return true;
  }();
  (void)once;
}

Warmup Warmup::read(ConfigSection& config) {
  Warmup warmup;
  warmup.steps = config.integer("warmup_steps", 0, Range::at_least(0.0),
                                "updates over which the rate grows to its full value");
  warmup.factor = config.number("warmup_factor", 0.01, Range::closed(0.0, 1.0),
                                "share of the rate at the first update of the warm-up");
  return warmup;
}

double Warmup::multiplier(std::int64_t t) const {
  if (t >= steps) return 1.0;
  return factor + (1.0 - factor) * static_cast<double>(t) / static_cast<double>(steps);
}

std::int64_t whole_periods(std::int64_t t, double steps_per_epoch, double epochs) {
  const double periods = static_cast<double>(t) / (steps_per_epoch * epochs);
  return static_cast<std::int64_t>(std::floor(std::min(periods * (1.0 + 1e-12), 1e15)));
}

}  // namespace starling
