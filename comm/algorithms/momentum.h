#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "comm/algorithm.h"
#include "core/error.h"
#include "kernels/cpu/update.h"
#include "kernels/math/rules.h"
#include "kernels/math/update_loop.h"

namespace starling {

/// The settings of the run's `sgd`, for algorithms whose formulas are about its momentum.
inline const rules::Sgd& sgd_of(const OptimizerRule& rule) {
  const auto* kernel = dynamic_cast<const RuleKernel<rules::Sgd, cpu::IsaLaunch>*>(&rule);
  require(kernel, "algorithm", "the optimizer is not sgd");
  return kernel->rule();
}

/// Its momentum; 0 of other optimizers, whose update without gradient is the identity.
inline double momentum_of(const OptimizerRule& rule) {
  const auto* kernel = dynamic_cast<const RuleKernel<rules::Sgd, cpu::IsaLaunch>*>(&rule);
  return kernel ? kernel->rule().momentum : 0.0;
}

/// For AlgorithmPlan::rule_fault.
inline std::string nesterov_fault(const OptimizerRule& rule) {
  return sgd_of(rule).nesterov ? "its formulas are of plain momentum; allowed: \"nesterov\": false" : "";
}

/// How disagreement moves where ranks mix what they have, a part of it, or now and then: every `interval` steps x goes `part` of the way to
/// its mix. z is {x, m}, sgd's momentum.
struct MixedNow {
  double part = 1.0;
  std::int64_t interval = 1, mean_every = 0;
  bool adapt_then_combine = false;
};
DisagreementModel model_of_mixing(const OptimizerRule& rule, const MixedNow& how);

/// z += factor · v, for DisagreementModel.
inline void add(std::vector<double>& z, double factor, const std::vector<double>& v) {
  for (std::size_t i = 0; i < z.size(); ++i) z[i] += factor * v[i];
}
inline void scale(std::vector<double>& z, double factor) {
  for (double& x : z) x *= factor;
}

}  // namespace starling
