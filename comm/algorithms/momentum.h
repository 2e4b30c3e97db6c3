#pragma once

#include <string>

#include "core/error.h"
#include "kernels/cpu/update.h"
#include "kernels/math/update_loop.h"
#include "kernels/optimizers/sgd.h"

namespace starling {

/// The settings of the run's `sgd`, for algorithms whose formulas are about its momentum.
inline const rules::Sgd& sgd_of(const OptimizerRule& rule) {
  const auto* kernel = dynamic_cast<const RuleKernel<rules::Sgd, cpu::IsaLaunch>*>(&rule);
  require(kernel, "algorithm", "the optimizer is not sgd");
  return kernel->rule();
}

/// The momentum of sgd; 0 for other optimizers, whose update without gradient is the identity.
inline double momentum_of(const OptimizerRule& rule) {
  const auto* kernel = dynamic_cast<const RuleKernel<rules::Sgd, cpu::IsaLaunch>*>(&rule);
  return kernel ? kernel->rule().momentum : 0.0;
}

/// AlgorithmNeeds::rule_fault that rejects Nesterov's momentum.
inline std::string nesterov_fault(const OptimizerRule& rule) {
  return sgd_of(rule).nesterov ? "its formulas are of plain momentum; allowed: \"nesterov\": false"
                               : "";
}

}  // namespace starling
