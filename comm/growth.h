#pragma once

#include <functional>
#include <vector>

#include "comm/algorithm.h"
#include "topology/topology.h"

namespace starling {

/// The growth of the ranks' disagreement per step without gradients: the spectral radius of the
/// algorithm's linear map over a period of the topology (64 rounds if it has none), per step.
struct Growth {
  /// 0 without a model (AlgorithmGrowth::model) or with a single rank
  double per_step = 0.0;
  /// Estimated within 1 % from random starts, because the map is too large for a matrix
  bool estimated = false;
  /// Whether the disagreement diverges, so that the algorithm must not be used.
  bool grows() const { return per_step >= (estimated ? 1.01 : 1.0 - 1e-9); }
};
Growth growth_per_step(const AlgorithmPlan& plan, const OptimizerRule& rule,
                       const Topology& topology);
/// Throws Error(kUsage) if the disagreement diverges, with the growth and with topologies and
/// algorithms that work.
void check_growth(const AlgorithmPlan& plan, const OptimizerRule& rule,
                  const std::string& optimizer, const Topology& topology,
                  const std::string& topology_name, const RankLayout& site,
                  const ConfigSection& sync);

}  // namespace starling
