#include "comm/algorithm.h"

#include <cstddef>
#include <numeric>
#include <string>

#include "comm/algorithms/builtin.h"

namespace starling {

std::int64_t repeat_period(const Topology* topology, const OptimizerRule& rule, int buffers, std::string& why) {
  if (topology && topology->period() == 0) {
    why = "the topology's rounds never repeat";
    return 0;
  }
  return std::lcm(std::lcm(topology ? topology->period() : 1, rule.phases()), static_cast<std::int64_t>(buffers));
}

AlgorithmRegistry& algorithms() {
  static AlgorithmRegistry registry("algorithm");
  return registry;
}

void register_builtin_algorithms() {
  if (algorithms().contains("gossip")) return;
  algorithms().add("gossip", make_gossip, "mix parameters with a round's neighbours, overlapped with the next forward and backward pass");
  algorithms().add("allreduce", make_all_reduce, "average gradients over all ranks, overlapped with the backward pass");
}

}  // namespace starling
