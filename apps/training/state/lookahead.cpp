#include "apps/training/state/lookahead.h"

#include <cmath>

#include "core/operations/pointwise.h"
#include "core/trace.h"

namespace starling {

double LookaheadSettings::share(std::int64_t step, std::int64_t total) const {
  return power == 0.0
             ? decay
             : decay * std::pow(static_cast<double>(step) / static_cast<double>(total), power);
}

void Lookahead::begin() {
  for_each([&](const Tensor& slow, const Tensor& own) { backend_.copy(own, slow); });
}

bool Lookahead::meet(const Tensor& slow, const Tensor& own, std::int64_t step,
                     std::int64_t total) const {
  const bool due = step % settings_.every == 0;
  if (due) {
    const double share = settings_.share(step, total);
    backend_.weighted_sum(
        {.in = {slow, own}, .weight = {share, 1.0 - share}, .terms = 2, .out = slow});
  }
  if (due || step == total) backend_.copy(slow, own);
  return due || step == total;
}

void Lookahead::after_update(std::size_t bucket, std::int64_t step, std::int64_t total) const {
  const Bucket& b = bucket_list_[bucket];
  const Tensor own = b.own_part(b.parameters);
  if (meet(b.own_part(parameters_[bucket]), own, step, total) && b.low)
    backend_.cast({.x = own, .y = b.own_part(b.low)});
}

void Lookahead::after_step(std::int64_t step, std::int64_t total) const {
  const TraceSpan span("lookahead", {}, TraceLane::kUpdate);
  for_each_buffer([&](const Tensor& slow, const Tensor& own) { meet(slow, own, step, total); });
}

}  // namespace starling
