#include <memory>
#include <string>

#include "kernels/cpu/update.h"
#include "kernels/math/rules.h"
#include "kernels/math/update_loop.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/settings.h"

namespace starling {
namespace {

template <bool kDecoupled>
std::unique_ptr<OptimizerRule> make_adam(ConfigSection& config) {
  rules::Adam<kDecoupled> rule{read_adam_settings(config, kDecoupled ? 0.1 : 0.0)};
  std::string word;
  rule.noise_correction =
      config.number_or_word("noise_correction", 1.0, Range::at_least(1.0), {"ranks"}, word,
                            "N: leave out of the second moment the noise that a mean over N ranks "
                            "would not have; 1: off; "
                            "ranks: as many as the run has");
  rule.noise_of_all_ranks = !word.empty();
  if (rule.noise_of_all_ranks) rule.noise_correction = 1.0;  // until the ranks are known
  return std::make_unique<RuleKernel<rules::Adam<kDecoupled>, cpu::IsaLaunch>>(rule);
}

}  // namespace

void register_adam() {
  optimizers().add("adam", make_adam<false>, "Adam; weight decay joins the gradient");
  optimizers().add("adamw", make_adam<true>, "Adam with decoupled weight decay");
}

}  // namespace starling
