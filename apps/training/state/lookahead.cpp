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

Lookahead::Lookahead(const LookaheadSettings& settings, Backend& backend,
                     const std::vector<Bucket>& buckets, Model& model)
    : settings_(settings),
      backend_(backend),
      bucket_list_(buckets),
      model_(model),
      slow_(backend, buckets, model) {}

void Lookahead::begin() {
  for (std::size_t b = 0; b < slow_.parameters.size(); ++b)
    backend_.copy(bucket_list_[b].parameters, slow_.parameters[b]);
  for (std::size_t k = 0; k < slow_.buffers.size(); ++k) {
    if (slow_.buffers[k]) backend_.copy(model_.buffers()[k]->value, slow_.buffers[k]);
  }
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
  if (meet(slow_.parameters[bucket], b.parameters, step, total) && b.low)
    backend_.cast({.x = b.parameters, .y = b.low});
}

void Lookahead::after_step(std::int64_t step, std::int64_t total) const {
  const TraceSpan span("lookahead", {}, TraceLane::kUpdate);
  for (std::size_t k = 0; k < slow_.buffers.size(); ++k) {
    if (slow_.buffers[k]) meet(slow_.buffers[k], model_.buffers()[k]->value, step, total);
  }
}

}  // namespace starling
