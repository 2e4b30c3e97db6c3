#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/algorithm.h"
#include "kernels/optimizer.h"

// Steps on what the ranks disagree in (DisagreementModel), as comm/growth.h takes them: what algorithms' models are made of.
namespace starling {

/// Gossip: every `interval` steps x goes `part` of the way to its mix, and every `mean_every` exchanges (0: never) to the mean over all.
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

}  // namespace starling
