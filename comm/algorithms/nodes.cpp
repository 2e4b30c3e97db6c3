#include "comm/algorithms/nodes.h"

#include "comm/agreement.h"
#include "comm/exchange_plan.h"
#include "comm/exchange_schedule.h"
#include "core/error.h"

namespace starling {
namespace {

/// One round for ever.
class OneRound final : public Topology {
 public:
  OneRound(int ranks, Round round) : Topology(ranks), round_(std::move(round)) {}
  std::int64_t period() const override { return 1; }

 protected:
  Round make_round(std::int64_t) const override { return round_; }

 private:
  Round round_;
};

Group group_of(int first, int count) {
  Group group{{}, 1.0 / count, true};
  for (int r = 0; r < count; ++r) group.ranks.push_back(first + r);
  return group;
}

Exchange planned(Transport& transport, Round round) {
  const OneRound topology(transport.size(), std::move(round));
  transport.prepare(summed_groups(topology, false));
  return plan_exchange(topology.round(0), transport.rank());
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
  return planned(transport, {.groups = {group_of(0, transport.size() / per_node)},
                             .rows = {},
                             .ranks_per_node = per_node});
}

NodeSum sum_in_node(Transport& transport, int per_node) {
  std::vector<Group> nodes;
  for (int first = 0; first < transport.size(); first += per_node)
    nodes.push_back(group_of(first, per_node));
  return {planned(transport, {.groups = nodes, .rows = {}}), 1.0 / per_node};
}

}  // namespace starling
