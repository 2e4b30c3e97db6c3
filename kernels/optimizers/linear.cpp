#include "kernels/optimizers/linear.h"

#include <utility>

#include "core/error.h"
#include "kernels/cpu/update.h"
#include "kernels/math/update_loop.h"

namespace starling {

std::unique_ptr<OptimizerRule> make_linear_rule(
    int states, int made, std::function<LinearTerms(double lr)> coefficients) {
  require(made >= 0 && made <= states && states <= 2, "update",
          "no rule of sums has {} states and writes {} of them", states, made);
  return std::make_unique<RuleKernel<rules::Linear, cpu::IsaLaunch>>(
      rules::Linear{states, made, std::move(coefficients)});
}

}  // namespace starling
