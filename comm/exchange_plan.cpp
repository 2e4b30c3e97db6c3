#include "comm/exchange_plan.h"

#include <algorithm>
#include <cstddef>

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
    exchange.self_weight = group.self_weight - other;  // the sum holds this rank's own x once
  }
  exchange.weights = {other};
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
    if (std::any_of(row.begin(), row.end(), [&](const auto& entry) { return entry.first == rank && entry.second != 0.0; })) {
      exchange.send_to.push_back(static_cast<int>(i));
    }
  }
  if (!exchange.send_to.empty() || !exchange.receive_from.empty()) exchange.kind = Exchange::Kind::kNeighbours;
  return exchange;
}

}  // namespace

Exchange plan_exchange(const Round& round, int rank) {
  if (!round.rows.empty()) {
    require(rank >= 0 && static_cast<std::size_t>(rank) < round.rows.size(), "exchange", "rank {} has no row in a round of {} rows", rank,
            round.rows.size());
    return plan_rows(round, rank);
  }
  for (const Group& group : round.groups) {
    if (std::find(group.ranks.begin(), group.ranks.end(), rank) != group.ranks.end()) return plan_group(group, rank);
  }
  return {};
}

}  // namespace starling
