#include <cmath>
#include <memory>

#include "apps/trainer/schedules/warmup.h"

namespace starling {
namespace {

/// base·gamma^floor(epoch / step_size).
class StepSchedule : public Schedule {
 public:
  StepSchedule(ConfigSection& config, const ScheduleInputs& site)
      : base_(site.base_lr), steps_per_epoch_(site.steps_per_epoch), warmup_(Warmup::read(config)) {
    step_size_ =
        config.number("step_size", 30.0, Range::positive(), "epochs between two reductions");
    gamma_ = config.number("gamma", 0.1, Range::positive(), "factor of a reduction");
  }

  double lr(std::int64_t t) const override {
    const auto reductions = static_cast<double>(whole_periods(t, steps_per_epoch_, step_size_));
    return base_ * std::pow(gamma_, reductions) * warmup_.multiplier(t);
  }

 private:
  double base_, steps_per_epoch_;
  Warmup warmup_;
  double step_size_, gamma_;
};

}  // namespace

void register_step_schedule() {
  schedules().add(
      "step",
      [](ConfigSection& config, const ScheduleInputs& site) -> std::unique_ptr<Schedule> {
        return std::make_unique<StepSchedule>(config, site);
      },
      "times gamma every step_size epochs");
}

}  // namespace starling
