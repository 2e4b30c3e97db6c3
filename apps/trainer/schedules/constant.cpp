#include <memory>

#include "apps/trainer/schedules/warmup.h"

namespace starling {
namespace {

class ConstantSchedule : public Schedule {
 public:
  ConstantSchedule(ConfigSection& config, const ScheduleInputs& site)
      : base_(site.base_lr), warmup_(Warmup::read(config)) {}
  double lr(std::int64_t t) const override { return base_ * warmup_.multiplier(t); }

 private:
  double base_;
  Warmup warmup_;
};

}  // namespace

void register_constant_schedule() {
  schedules().add(
      "constant",
      [](ConfigSection& config, const ScheduleInputs& site) -> std::unique_ptr<Schedule> {
        return std::make_unique<ConstantSchedule>(config, site);
      },
      "the same rate throughout");
}

}  // namespace starling
