#include "kernels/math/lion.h"

#include <memory>

#include "kernels/cpu/update.h"
#include "kernels/math/update_loop.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/settings.h"

namespace starling {

void register_lion() {
  optimizers().add(
      "lion",
      [](ConfigSection& config) -> std::unique_ptr<OptimizerRule> {
        rules::Lion rule;
        const Betas betas = read_betas(config, {rule.beta1, rule.beta2},
                                       "share of the running mean in the step, and its decay");
        rule.beta1 = betas.first;
        rule.beta2 = betas.second;
        rule.weight_decay = read_weight_decay(config, 0.0);
        return std::make_unique<RuleKernel<rules::Lion, cpu::IsaLaunch>>(rule);
      },
      "the sign of a running mean of gradients, with decoupled weight decay");
}

}  // namespace starling
