#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "comm/algorithm.h"
#include "kernels/optimizer.h"

// What the ranks disagree in: steps on it (DisagreementModel), as comm/growth.h takes them, and how
// much of it there is where the planner asks.
namespace starling {

/// Gossip: every `interval` steps x goes `part` of the way to its mix, and every `mean_every`
/// exchanges (0: never) to the mean over all.
struct PartialMix {
  double part = 1.0;
  std::int64_t interval = 1, mean_every = 0;
  bool adapt_then_combine = false;
};
/// z is {x, m}, m being sgd's momentum.
DisagreementModel model_of_mixing(const OptimizerRule& rule, const PartialMix& how);

/// z += factor · v, for DisagreementModel.
inline void add(std::vector<double>& z, double factor, const std::vector<double>& v) {
  for (std::size_t i = 0; i < z.size(); ++i) z[i] += factor * v[i];
}
inline void scale(std::vector<double>& z, double factor) {
  for (double& x : z) x *= factor;
}

/// AlgorithmCost::disagreement of ranks that mix every `interval` steps: each round leaves its part
/// of what that many updates added, in between they grow by one a step, and where ranks combine
/// while they compute, the last update is not mixed.
inline double drift_of(std::int64_t interval, bool overlap, double left) {
  const auto steps = static_cast<double>(interval);
  return steps * (left - 1.0) + (steps - 1.0) / 2.0 + (overlap ? 1.0 : 0.0);
}
/// The cost of such mixing.
inline AlgorithmCost cost_of_mixing(bool overlap, std::int64_t interval = 1) {
  return {.exchanges = {{.every = interval, .hidden = overlap ? 1 : 0}},
          .disagreement = [=](double left) { return drift_of(interval, overlap, left); }};
}

/// AlgorithmCost::disagreement of ranks that go alone between means over all, at most 64 steps: how
/// outer steps and slow momentum learn with longer periods, or where something else is mixed
/// between, has not been measured, and then there is no function.
inline std::function<double(double)> drift_of_averages(std::int64_t period, bool otherwise) {
  if (period > 64 || otherwise) return {};
  return [period](double left) { return drift_of(period, false, left); };
}

}  // namespace starling
