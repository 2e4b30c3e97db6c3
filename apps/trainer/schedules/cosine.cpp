#include <cmath>
#include <memory>
#include <numbers>

#include "apps/trainer/schedules/warmup.h"

namespace starling {
namespace {

/// Half a cosine from the base rate down to `min_lr` over the updates after the warm-up (Loshchilov
/// & Hutter 2017, arXiv 1608.03983).
class CosineSchedule : public Schedule {
 public:
  CosineSchedule(ConfigSection& config, const ScheduleInputs& site)
      : base_(site.base_lr), warmup_(Warmup::read(config)) {
    min_lr_ = config.number("min_lr", 1e-6, Range::at_least(0.0), "rate at the end of the run");
    length_ = site.total_steps - warmup_.steps;
  }

  double lr(std::int64_t t) const override {
    if (t < warmup_.steps) return base_ * warmup_.multiplier(t);
    const std::int64_t since = t - warmup_.steps;
    if (since >= length_) return min_lr_;
    const double phase =
        std::numbers::pi * static_cast<double>(since) / static_cast<double>(length_);
    return min_lr_ + (base_ - min_lr_) * (1.0 + std::cos(phase)) / 2.0;
  }

 private:
  double base_;
  Warmup warmup_;
  double min_lr_;
  std::int64_t length_;
};

}  // namespace

void register_cosine_schedule() {
  schedules().add(
      "cosine",
      [](ConfigSection& config, const ScheduleInputs& site) -> std::unique_ptr<Schedule> {
        return std::make_unique<CosineSchedule>(config, site);
      },
      "half a cosine down to min_lr");
}

}  // namespace starling
