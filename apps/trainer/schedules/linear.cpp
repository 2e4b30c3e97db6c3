#include <memory>

#include "apps/trainer/schedules/warmup.h"

namespace starling {
namespace {

/// A straight line from the base rate at the first update after the warm-up to `final_lr` at the
/// last update.
class LinearSchedule : public Schedule {
 public:
  LinearSchedule(ConfigSection& config, const ScheduleInputs& site)
      : base_(site.base_lr), warmup_(Warmup::read(config)) {
    final_lr_ = config.number("final_lr", 0.0, Range::at_least(0.0), "rate of the last update");
    last_ = site.total_steps - 1 - warmup_.steps;
  }

  double lr(std::int64_t t) const override {
    if (t < warmup_.steps) return base_ * warmup_.multiplier(t);
    const std::int64_t since = t - warmup_.steps;
    if (since >= last_) return final_lr_;
    return base_ + (final_lr_ - base_) * static_cast<double>(since) / static_cast<double>(last_);
  }

 private:
  double base_;
  Warmup warmup_;
  double final_lr_;
  std::int64_t last_;  ///< updates from the end of the warm-up to the last one
};

}  // namespace

void register_linear_schedule() {
  schedules().add(
      "linear",
      [](ConfigSection& config, const ScheduleInputs& site) -> std::unique_ptr<Schedule> {
        return std::make_unique<LinearSchedule>(config, site);
      },
      "a straight line to final_lr");
}

}  // namespace starling
