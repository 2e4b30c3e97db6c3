#include <memory>

#include "kernels/cpu/update.h"
#include "kernels/math/rules.h"
#include "kernels/math/update_loop.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/settings.h"

namespace starling {
namespace {

template <bool kDecoupled>
std::unique_ptr<OptimizerRule> make_adam(ConfigSection& config) {
  const rules::Adam<kDecoupled> rule{read_adam_settings(config, kDecoupled ? 0.1 : 0.0)};
  return std::make_unique<RuleKernel<rules::Adam<kDecoupled>, cpu::IsaLaunch>>(rule);
}

}  // namespace

void register_adam() {
  optimizers().add("adam", make_adam<false>, "Adam; weight decay joins the gradient");
  optimizers().add("adamw", make_adam<true>, "Adam with decoupled weight decay");
}

}  // namespace starling
