#pragma once

#include <cstdint>
#include <memory>

#include "core/config.h"
#include "core/registry.h"

namespace starling {

/// Arguments of all schedules: base learning rate and length of the run.
struct ScheduleInputs {
  double base_lr = 0.1;
  std::int64_t total_steps = 1;
  double steps_per_epoch = 1.0;
};

/// The learning rate of update t = 0, 1, …; semantics.md section 8.
class Schedule {
 public:
  virtual ~Schedule() = default;
  virtual double lr(std::int64_t t) const = 0;
};

using ScheduleRegistry = Registry<std::unique_ptr<Schedule>, ConfigSection&, const ScheduleInputs&>;
ScheduleRegistry& schedules();
void register_builtin_schedules();

}  // namespace starling
