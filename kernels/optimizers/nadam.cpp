#include "kernels/math/nadam.h"

#include <memory>

#include "kernels/cpu/update.h"
#include "kernels/math/update_loop.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/settings.h"

namespace starling {

void register_nadam() {
  optimizers().add(
      "nadam",
      [](ConfigSection& config) -> std::unique_ptr<OptimizerRule> {
        rules::Nadam rule{read_adam_settings(config, 0.0)};
        rule.momentum_decay =
            config.number("momentum_decay", rule.momentum_decay, Range::at_least(0.0),
                          "how fast the momentum grows from half of betas' first to all of it, as "
                          "1 - 0.96^(s * momentum_decay) / 2");
        rule.decoupled =
            config.boolean("decoupled_weight_decay", false,
                           "weight decay as in adamw; otherwise it joins the gradient");
        return std::make_unique<RuleKernel<rules::Nadam, cpu::IsaLaunch>>(rule);
      },
      "Adam with Nesterov's momentum");
}

}  // namespace starling
