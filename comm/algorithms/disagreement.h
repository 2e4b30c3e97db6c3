#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "comm/algorithm.h"
#include "core/error.h"
#include "kernels/cpu/update.h"
#include "kernels/math/update_loop.h"
#include "kernels/optimizers/sgd.h"

// Disagreement between ranks: how a step changes it (DisagreementModel, for comm/growth.h), and how
// large it becomes (for the planner); and sgd's momentum, on which it depends.
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

/// Gossip: every `interval` steps x moves towards its mix, by the fraction `part` of the distance;
/// every `mean_every` exchanges (0: never) the mix is the mean over all ranks.
struct PartialMix {
  double part = 1.0;
  std::int64_t interval = 1, mean_every = 0;
  bool adapt_then_combine = false;
};
/// z is {x, m}, where m is sgd's momentum.
DisagreementModel model_of_mixing(const OptimizerRule& rule, const PartialMix& how);

/// z += factor · v, for DisagreementModel.
inline void add(std::vector<double>& z, double factor, const std::vector<double>& v) {
  for (std::size_t i = 0; i < z.size(); ++i) z[i] += factor * v[i];
}
inline void scale(std::vector<double>& z, double factor) {
  for (double& x : z) x *= factor;
}

/// AlgorithmCost::disagreement of ranks that mix every `interval` steps: a round reduces what so
/// many updates have added; between rounds it grows by one per step; with `overlap` the last update
/// is not mixed yet.
inline double drift_of(std::int64_t interval, bool overlap, double left) {
  const auto steps = static_cast<double>(interval);
  return steps * (left - 1.0) + (steps - 1.0) / 2.0 + (overlap ? 1.0 : 0.0);
}
/// The cost of such mixing.
inline AlgorithmCost cost_of_mixing(bool overlap, std::int64_t interval = 1) {
  return {.exchanges = {{.every = interval, .hidden = overlap ? 1 : 0}},
          .disagreement = [=](double left) { return drift_of(interval, overlap, left); }};
}

/// AlgorithmCost::disagreement of ranks that do not communicate between means over all. Null for
/// periods above 64 steps and for algorithms that mix in other ways (`otherwise`), whose learning
/// progress has not been measured.
inline std::function<double(double)> drift_of_averages(std::int64_t period, bool otherwise) {
  if (period > 64 || otherwise) return {};
  return [period](double) { return drift_of(period, false, 1.0); };
}

}  // namespace starling
