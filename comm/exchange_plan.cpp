#include "comm/exchange_plan.h"

#include <set>

#include "core/error.h"

namespace starling {
namespace {

Exchange plan_group(const Group& group, int rank) {
  Exchange exchange;
  const auto members = group.ranks.size();
  if (members < 2) return exchange;
  const double other = (1.0 - group.self_weight) / static_cast<double>(members - 1);
  if (members == 2) {
    const int peer = group.ranks[0] == rank ? group.ranks[1] : group.ranks[0];
    exchange.kind = Exchange::Kind::kNeighbours;
    exchange.send_to = exchange.receive_from = {peer};
    exchange.self_weight = group.self_weight;
  } else {
    exchange.kind = Exchange::Kind::kGroupSum;
    exchange.group = group.ranks;
    std::sort(exchange.group.begin(), exchange.group.end());
    // The sum contains this rank's own x once
    exchange.self_weight = group.mean ? 0.0 : group.self_weight - other;
  }
  exchange.weights = {group.mean ? group.self_weight : other};
  return exchange;
}

Exchange plan_rows(const Round& round, int rank) {
  Exchange exchange;
  exchange.self_weight = 0.0;
  for (const auto& [j, weight] : round.rows[static_cast<std::size_t>(rank)]) {
    if (weight == 0.0) continue;
    if (j == rank) {
      exchange.self_weight = weight;
    } else {
      exchange.receive_from.push_back(j);
      exchange.weights.push_back(weight);
    }
  }
  for (std::size_t i = 0; i < round.rows.size(); ++i) {
    if (static_cast<int>(i) == rank) continue;
    const auto& row = round.rows[i];
    if (std::any_of(row.begin(), row.end(), [&](const auto& entry) {
          return entry.first == rank && entry.second != 0.0;
        })) {
      exchange.send_to.push_back(static_cast<int>(i));
    }
  }
  if (!exchange.send_to.empty() || !exchange.receive_from.empty())
    exchange.kind = Exchange::Kind::kNeighbours;
  return exchange;
}

/// A rank computes the mean of its shard over the node, mixes it with its peers' (the ranks with
/// the same index on other nodes), and the node's ranks gather the shards.
Exchange plan_nodes(const Round& round, int rank) {
  const int per_node = round.ranks_per_node, node = rank / per_node, number = rank % per_node;
  Round between = round;
  between.ranks_per_node = 1;
  const Exchange nodes = plan_exchange(between, node);
  Exchange exchange{.kind = Exchange::Kind::kNodes, .self_weight = 0.0, .weights = {1.0}};
  for (int r = 0; r < per_node; ++r) exchange.group.push_back(node * per_node + r);
  const auto peers_of = [&](const std::vector<int>& of) {
    std::vector<int> peers;
    for (const int other : of) {
      if (other != node) peers.push_back(other * per_node + number);
    }
    return peers;
  };
  if (nodes.kind == Exchange::Kind::kGroupSum) {
    exchange.send_to = exchange.receive_from = peers_of(nodes.group);
    exchange.own_share = nodes.self_weight + nodes.weights[0];
    exchange.shares.assign(exchange.receive_from.size(), nodes.weights[0]);
  } else {
    exchange.send_to = peers_of(nodes.send_to);
    exchange.receive_from = peers_of(nodes.receive_from);
    exchange.own_share = nodes.self_weight;
    exchange.shares = nodes.weights;
  }
  // With nothing to exchange between nodes, a node takes its mean.
  if (exchange.send_to.empty() && exchange.receive_from.empty())
    return plan_group({exchange.group, 1.0 / per_node}, rank);
  return exchange;
}

}  // namespace

Exchange plan_exchange(const Round& round, int rank, bool flat) {
  if (round.ranks_per_node > 1)
    return flat ? plan_exchange(over_ranks(round), rank) : plan_nodes(round, rank);
  if (!round.rows.empty()) {
    require(rank >= 0 && static_cast<std::size_t>(rank) < round.rows.size(), "exchange",
            "rank {} has no row in a round of {} rows", rank, round.rows.size());
    return plan_rows(round, rank);
  }
  for (const Group& group : round.groups) {
    if (std::find(group.ranks.begin(), group.ranks.end(), rank) != group.ranks.end())
      return plan_group(group, rank);
  }
  return {};
}

Exchange as_messages(const Exchange& exchange, int rank) {
  require(exchange.kind != Exchange::Kind::kNodes, "exchange",
          "a round over nodes as messages; plan it flat");
  if (exchange.kind != Exchange::Kind::kGroupSum) return exchange;
  std::vector<int> others = exchange.group;
  std::erase(others, rank);
  // The sum contained this rank's own term once
  return {.kind = Exchange::Kind::kNeighbours,
          .send_to = others,
          .receive_from = others,
          .self_weight = exchange.self_weight + exchange.weights[0],
          .weights = std::vector<double>(others.size(), exchange.weights[0])};
}

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
