#include "kernels/math/adagrad.h"

#include <memory>

#include "kernels/cpu/update.h"
#include "kernels/math/update_loop.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/settings.h"

namespace starling {

void register_adagrad() {
  optimizers().add(
      "adagrad",
      [](ConfigSection& config) -> std::unique_ptr<OptimizerRule> {
        rules::Adagrad rule;
        rule.lr_decay = config.number("lr_decay", 0.0, Range::at_least(0.0),
                                      "step s has the rate lr / (1 + (s - 1) * lr_decay)");
        rule.eps = read_eps(config, rule.eps);
        rule.weight_decay = read_weight_decay(config, 0.0);
        rule.initial_accumulator_value =
            config.number("initial_accumulator_value", 0.0, Range::at_least(0.0),
                          "what the sum of squares starts from");
        return std::make_unique<RuleKernel<rules::Adagrad, cpu::IsaLaunch>>(rule);
      },
      "the gradient over the root of the sum of all its squares");
}

}  // namespace starling
