#pragma once

#include <functional>
#include <vector>

#include "comm/algorithm.h"
#include "topology/topology.h"

namespace starling {

/// How much the ranks' disagreement grows in a step where gradients are zero: the spectral radius of an algorithm's linear map over a
/// period of the topology (64 rounds of one without period), per step. 1 and above: the algorithm may not be trained with. 0 where the plan
/// has no model (AlgorithmPlan::growth), or there is one rank.
double growth_per_step(const AlgorithmPlan& plan, const OptimizerRule& rule, const Topology& topology);
/// Throws Error(kUsage) that gives the number and names the topologies and algorithms that would do.
void check_growth(const AlgorithmPlan& plan, const OptimizerRule& rule, const std::string& optimizer, const Topology& topology,
                  const std::string& topology_name, const RankLayout& site);

}  // namespace starling
