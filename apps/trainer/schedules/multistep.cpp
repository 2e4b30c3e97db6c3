#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <memory>
#include <vector>

#include "apps/trainer/schedules/warmup.h"

namespace starling {
namespace {

/// base·gamma^(milestones passed); milestones are in epochs, fractions allowed.
class MultistepSchedule : public Schedule {
 public:
  MultistepSchedule(ConfigSection& config, const ScheduleInputs& site)
      : base_(site.base_lr), steps_per_epoch_(site.steps_per_epoch), warmup_(Warmup::read(config)) {
    milestones_ = config.numbers("milestones", {}, Range::positive(),
                                 "epochs at which the rate is reduced, ascending");
    for (std::size_t i = 1; i < milestones_.size(); ++i) {
      if (milestones_[i] <= milestones_[i - 1]) {
        config.error("milestones", "found {} after {}, expected ascending epochs", milestones_[i],
                     milestones_[i - 1]);
      }
    }
    gamma_ = config.number("gamma", 0.1, Range::positive(), "factor of a reduction");
  }

  double lr(std::int64_t t) const override {
    double passed = 0.0;
    for (const double milestone : milestones_) {
      if (whole_periods(t, steps_per_epoch_, milestone) >= 1) passed += 1.0;
    }
    return base_ * std::pow(gamma_, passed) * warmup_.multiplier(t);
  }

 private:
  double base_, steps_per_epoch_;
  Warmup warmup_;
  std::vector<double> milestones_;
  double gamma_;
};

}  // namespace

void register_multistep_schedule() {
  schedules().add(
      "multistep",
      [](ConfigSection& config, const ScheduleInputs& site) -> std::unique_ptr<Schedule> {
        return std::make_unique<MultistepSchedule>(config, site);
      },
      "times gamma at each of the milestones");
}

}  // namespace starling
