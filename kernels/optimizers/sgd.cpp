#include <memory>

#include "kernels/cpu/update.h"
#include "kernels/math/rules.h"
#include "kernels/math/update_loop.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/settings.h"

namespace starling {

void register_sgd() {
  optimizers().add(
      "sgd",
      [](ConfigSection& config) -> std::unique_ptr<OptimizerRule> {
        rules::Sgd rule;
        rule.momentum = config.number("momentum", 0.0, Range::half_open(0.0, 1.0),
                                      "share of the last step's direction");
        rule.nesterov = config.boolean("nesterov", false, "look ahead along the momentum");
        if (rule.nesterov && rule.momentum == 0.0)
          config.error("nesterov", "true needs a momentum above 0");
        rule.weight_decay = read_weight_decay(config, 0.0);
        return std::make_unique<RuleKernel<rules::Sgd, cpu::IsaLaunch>>(rule);
      },
      "stochastic gradient descent, with momentum or Nesterov's");
}

}  // namespace starling
