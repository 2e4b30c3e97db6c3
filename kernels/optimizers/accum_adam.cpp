#include <memory>

#include "kernels/cpu/update.h"
#include "kernels/math/rules.h"
#include "kernels/math/update_loop.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/settings.h"

namespace starling {
namespace {

template <bool kDecoupled>
std::unique_ptr<OptimizerRule> make_accum_adam(ConfigSection& config) {
  rules::AccumAdam<kDecoupled> rule{read_adam_settings(config, kDecoupled ? 0.1 : 0.0)};
  rule.accum_iter = config.integer("accum_iter", 4, Range::closed(1.0, 1e6),
                                   "steps whose mean gradient moves the running means once");
  return std::make_unique<RuleKernel<rules::AccumAdam<kDecoupled>, cpu::IsaLaunch>>(rule);
}

}  // namespace

void register_accum_adam() {
  optimizers().add("accum_adam", make_accum_adam<false>,
                   "Adam whose moments follow the mean gradient of accum_iter steps");
  optimizers().add("accum_adamw", make_accum_adam<true>, "accum_adam with decoupled weight decay");
}

}  // namespace starling
