#include "comm/exchange_schedule.h"

#include <cstddef>
#include <set>

#include "comm/exchange_plan.h"

namespace starling {

ExchangeSchedule::ExchangeSchedule(const Topology* topology, int rank, bool flat)
    : topology_(topology), rank_(rank), flat_(flat) {
  if (!topology_) return;
  for (std::int64_t k = 0; k < topology_->period(); ++k)
    period_.push_back(plan_exchange(topology_->round(k), rank_, flat_));
}

const Exchange& ExchangeSchedule::round(std::int64_t k) {
  if (!topology_) return identity_;
  if (!period_.empty()) return period_[static_cast<std::size_t>(k) % period_.size()];
  const auto slot = static_cast<std::size_t>(k % 2);
  if (recent_round_[slot] != k) {
    recent_[slot] = plan_exchange(topology_->round(k), rank_, flat_);
    recent_round_[slot] = k;
  }
  return recent_[slot];
}

std::vector<std::vector<int>> summed_groups(const Topology& topology, bool flat, bool nodes_only) {
  std::vector<std::vector<int>> groups;
  std::set<std::vector<int>> known;
  const auto add = [&](const Round& round, int member) {
    const Exchange exchange = plan_exchange(round, member, flat);
    const bool sums = exchange.kind == Exchange::Kind::kNodes ||
                      (exchange.kind == Exchange::Kind::kGroupSum && !nodes_only);
    if (sums && known.insert(exchange.group).second) groups.push_back(exchange.group);
  };
  for (std::int64_t k = 0; k < std::max<std::int64_t>(topology.period(), 1); ++k) {
    const Round round = topology.round(k);
    const int per_node = round.ranks_per_node;
    if (per_node > 1) {  // every node is in some group or row
      for (int rank = 0; rank < topology.ranks(); rank += flat ? 1 : per_node) add(round, rank);
    } else {
      for (const Group& group : round.groups) {
        if (!group.ranks.empty()) add(round, group.ranks.front());
      }
    }
  }
  return groups;
}

}  // namespace starling
