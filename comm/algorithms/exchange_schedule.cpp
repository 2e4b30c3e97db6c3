#include "comm/algorithms/exchange_schedule.h"

#include <cstddef>

#include "comm/exchange_plan.h"

namespace starling {

ExchangeSchedule::ExchangeSchedule(const Topology* topology, int rank, bool flat) : topology_(topology), rank_(rank), flat_(flat) {
  if (!topology_) return;
  for (std::int64_t k = 0; k < topology_->period(); ++k) period_.push_back(plan_exchange(topology_->round(k), rank_, flat_));
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

}  // namespace starling
