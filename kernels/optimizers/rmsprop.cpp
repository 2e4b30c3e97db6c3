#include "kernels/math/rmsprop.h"

#include <memory>

#include "kernels/cpu/update.h"
#include "kernels/math/update_loop.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/settings.h"

namespace starling {

void register_rmsprop() {
  optimizers().add(
      "rmsprop",
      [](ConfigSection& config) -> std::unique_ptr<OptimizerRule> {
        rules::Rmsprop rule;
        rule.alpha = config.number("alpha", rule.alpha, Range::half_open(0.0, 1.0),
                                   "decay of the running means");
        rule.eps = read_eps(config, rule.eps);
        rule.weight_decay = read_weight_decay(config, 0.0);
        rule.momentum = config.number("momentum", 0.0, Range::half_open(0.0, 1.0),
                                      "share of the last step's direction");
        rule.centered = config.boolean("centered", false,
                                       "divide by the gradient's deviation from its running mean");
        return std::make_unique<RuleKernel<rules::Rmsprop, cpu::IsaLaunch>>(rule);
      },
      "the gradient over the root of its mean square, with momentum or centered");
}

}  // namespace starling
