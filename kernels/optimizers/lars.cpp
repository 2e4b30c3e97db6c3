#include "kernels/math/lars.h"

#include <memory>

#include "kernels/cpu/update.h"
#include "kernels/math/update_loop.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/settings.h"

namespace starling {

void register_lars() {
  optimizers().add(
      "lars",
      [](ConfigSection& config) -> std::unique_ptr<OptimizerRule> {
        rules::Lars rule;
        rule.momentum = config.number("momentum", rule.momentum, Range::half_open(0.0, 1.0),
                                      "share of the last step's direction");
        rule.nesterov = config.boolean("nesterov", false, "look ahead along the momentum");
        if (rule.nesterov && rule.momentum == 0.0)
          config.error("nesterov", "true needs a momentum above 0");
        rule.trust = config.number("trust", rule.trust, Range::positive(),
                                   "a layer's step is about lr * trust times as long as the layer");
        rule.eps = read_eps(config, rule.eps);
        rule.weight_decay = read_weight_decay(config, 0.0);
        rule.adapt_all = read_adapt_all(config);
        return std::make_unique<RuleKernel<rules::Lars, cpu::IsaLaunch>>(rule);
      },
      "sgd with a rate for each layer, by the norms of its weights and gradient");
}

}  // namespace starling
