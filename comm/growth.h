#pragma once

#include <functional>
#include <vector>

#include "comm/algorithm.h"
#include "topology/topology.h"

namespace starling {

/// How much the ranks' disagreement grows in a step where gradients are zero: the spectral radius
/// of an algorithm's linear map over a period of the topology (64 rounds of one without period),
/// per step.
struct Growth {
  /// 0 where the plan has no model (AlgorithmGrowth::model), or there is one rank
  double per_step = 0.0;
  /// True: estimated from random starts, where the map is too large for a matrix: within a
  /// hundredth
  bool estimated = false;
  /// The algorithm may not be trained with.
  bool grows() const { return per_step >= (estimated ? 1.01 : 1.0 - 1e-9); }
};
Growth growth_per_step(const AlgorithmPlan& plan, const OptimizerRule& rule,
                       const Topology& topology);
/// Throws Error(kUsage) about `sync`'s algorithm that gives the number and names the topologies and
/// algorithms that would do.
void check_growth(const AlgorithmPlan& plan, const OptimizerRule& rule,
                  const std::string& optimizer, const Topology& topology,
                  const std::string& topology_name, const RankLayout& site,
                  const ConfigSection& sync);

}  // namespace starling
