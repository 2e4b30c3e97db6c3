#include "kernels/math/lamb.h"

#include <memory>

#include "kernels/cpu/update.h"
#include "kernels/math/update_loop.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/settings.h"

namespace starling {

void register_lamb() {
  optimizers().add(
      "lamb",
      [](ConfigSection& config) -> std::unique_ptr<OptimizerRule> {
        rules::Lamb rule;
        const Betas betas = read_betas(config, {rule.settings.beta1, rule.settings.beta2},
                                       "decay of the running means of the gradient and its square");
        rule.settings.beta1 = betas.first;
        rule.settings.beta2 = betas.second;
        rule.settings.eps = read_eps(config, rule.settings.eps);
        rule.settings.weight_decay = read_weight_decay(config, rule.settings.weight_decay);
        rule.adapt_all = read_adapt_all(config);
        return std::make_unique<RuleKernel<rules::Lamb, cpu::IsaLaunch>>(rule);
      },
      "adamw with a rate for each layer, by the norms of its weights and step");
}

}  // namespace starling
