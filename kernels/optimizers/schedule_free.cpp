#include "kernels/math/schedule_free.h"

#include <memory>

#include "kernels/cpu/update.h"
#include "kernels/math/update_loop.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/settings.h"

namespace starling {

void register_schedule_free() {
  optimizers().add(
      "schedule_free_adamw",
      [](ConfigSection& config) -> std::unique_ptr<OptimizerRule> {
        rules::ScheduleFreeAdam rule{read_adam_settings(config, 0.0)};
        if (rule.settings.beta1 == 0.0)
          config.error("betas", "the first is 0, with which nothing is averaged; allowed: > 0");
        rule.warmup_steps = config.integer("warmup_steps", 0, Range::closed(0, 1e12),
                                           "steps in which the rate grows to lr, from lr / "
                                           "warmup_steps on; schedule must be constant");
        return std::make_unique<RuleKernel<rules::ScheduleFreeAdam, cpu::IsaLaunch>>(rule);
      },
      "AdamW at a constant rate; the mean of its steps is tested and written, instead of a "
      "schedule");
}

}  // namespace starling
