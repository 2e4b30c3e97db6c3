#pragma once

#include <cstdint>

#include "apps/trainer/schedules/schedule.h"
#include "core/config.h"

namespace starling {

/// The warm-up that every schedule has: the rate is multiplied by s + (1-s)·t/W for t < W.
struct Warmup {
  std::int64_t steps = 0;  ///< W
  double factor = 0.01;    ///< s

  /// Reads `warmup_steps` and `warmup_factor`.
  static Warmup read(ConfigSection& config);
  double multiplier(std::int64_t t) const;
};

/// Whole periods that are over: floor((t / steps_per_epoch) / epochs), without falling one short
/// where the quotient is whole but for rounding.
std::int64_t whole_periods(std::int64_t t, double steps_per_epoch, double epochs);

/// Each of these adds one schedule to schedules().
void register_constant_schedule();
void register_cosine_schedule();
void register_multistep_schedule();
void register_step_schedule();
void register_linear_schedule();
void register_inverse_sqrt_schedule();

}  // namespace starling
