#include "comm/algorithms/nodes.h"

#include "comm/agreement.h"
#include "comm/exchange_plan.h"
#include "core/error.h"
#include "topology/round_table.h"

namespace starling {
namespace {

Exchange planned(Transport& transport, const Round& round) {
  transport.prepare(summed_groups(RoundTable(transport.size(), round), false));
  return plan_exchange(round, transport.rank());
}

}  // namespace

std::int64_t read_ranks_per_node(ConfigSection& config) {
  return config.integer(
      "ranks_per_node", 0, Range::closed(0, 1e6),
      "consecutive ranks that share a node; 0: the topology's, or those of a host");
}

int ranks_per_node(const AlgorithmSite& site) {
  if (site.ranks_per_node > 0) return static_cast<int>(site.ranks_per_node);
  World& world = site.transport.world();
  const double here = world.local_size();
  double most[2] = {here, -here};
  if (world.size() > 1) world.max(most, 2);
  const int count = static_cast<int>(most[0]);
  if (most[0] != -most[1] || world.size() % count != 0) {
    fail_on_all_ranks(
        ExitCode::kUsage, "config", {.key = "sync.algorithm.ranks_per_node"},
        "is not given, and hosts have {} to {} of the {} ranks; give a number that divides them",
        -most[1], most[0], world.size());
  }
  return count;
}

Exchange mean_by_nodes(Transport& transport, int per_node) {
  return planned(transport, {.groups = {mean_group(0, transport.size() / per_node, true)},
                             .rows = {},
                             .ranks_per_node = per_node});
}

Exchange sum_in_node(Transport& transport, int per_node) {
  std::vector<Group> nodes;
  for (int first = 0; first < transport.size(); first += per_node)
    nodes.push_back(mean_group(first, per_node, true));
  return planned(transport, {.groups = nodes, .rows = {}});
}

}  // namespace starling
