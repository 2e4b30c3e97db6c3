#include "comm/algorithms/exchange_schedule.h"

#include <algorithm>
#include <cstddef>

#include "comm/exchange_plan.h"

namespace starling {

ExchangeSchedule::ExchangeSchedule(const Topology* topology, int rank) : topology_(topology), rank_(rank) {
  if (!topology_) return;
  for (std::int64_t k = 0; k < topology_->period(); ++k) {
    period_.push_back(plan_exchange(topology_->round(k), rank_));
    most_received_ = std::max(most_received_, period_.back().received());
  }
}

const Exchange& ExchangeSchedule::round(std::int64_t k) {
  if (!topology_) return identity_;
  if (!period_.empty()) return period_[static_cast<std::size_t>(k) % period_.size()];
  const auto slot = static_cast<std::size_t>(k % 2);
  if (recent_round_[slot] != k) {
    recent_[slot] = plan_exchange(topology_->round(k), rank_);
    recent_round_[slot] = k;
    most_received_ = std::max(most_received_, recent_[slot].received());
  }
  return recent_[slot];
}

}  // namespace starling
