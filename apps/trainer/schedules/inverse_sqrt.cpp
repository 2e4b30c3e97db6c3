#include <algorithm>
#include <cmath>
#include <memory>

#include "apps/trainer/schedules/warmup.h"

namespace starling {
namespace {

/// base·sqrt(max(W, 1) / max(t, W, 1)) (Vaswani et al. 2017, arXiv 1706.03762).
class InverseSqrtSchedule : public Schedule {
 public:
  InverseSqrtSchedule(ConfigSection& config, const ScheduleInputs& site)
      : base_(site.base_lr), warmup_(Warmup::read(config)) {}

  double lr(std::int64_t t) const override {
    const std::int64_t start = std::max<std::int64_t>(warmup_.steps, 1);
    const double fraction = static_cast<double>(start) / static_cast<double>(std::max(t, start));
    return base_ * std::sqrt(fraction) * warmup_.multiplier(t);
  }

 private:
  double base_;
  Warmup warmup_;
};

}  // namespace

void register_inverse_sqrt_schedule() {
  schedules().add(
      "inverse_sqrt",
      [](ConfigSection& config, const ScheduleInputs& site) -> std::unique_ptr<Schedule> {
        return std::make_unique<InverseSqrtSchedule>(config, site);
      },
      "falls with the square root of the update's number");
}

}  // namespace starling
