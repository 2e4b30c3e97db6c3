#include "comm/algorithms/bucketwise.h"

#include <algorithm>
#include <utility>

namespace starling {

Means::Means(const AlgorithmSite& site)
    : transport_(site.transport),
      share_(1.0 / site.transport.size()),
      sums_(site.buckets.size()),
      numbers_(site.buckets.size()),
      tickets_(site.buckets.size()) {
  for (const Bucket& bucket : site.buckets) {
    std::int64_t& most = most_.emplace_back(0);
    for (const Tensor& state : bucket.states) most = std::max(most, state.elements());
  }
}

void Means::start(int bucket, const Tensor& numbers, const StepInfo& info, Lane lane) {
  const auto b = static_cast<std::size_t>(bucket);
  numbers_[b] = numbers;
  if (transport_.size() == 1) return;
  if (!sums_[b])
    sums_[b] =
        Tensor(numbers.backend(), Shape{std::max(most_[b], numbers.elements())}, numbers.dtype());
  const StreamScope scope(numbers.backend(), StreamKind::kUpdate);  // where they were written
  tickets_[b] = transport_.start_sum(numbers, sums_[b].slice(0, Shape{numbers.elements()}),
                                     {info.step, bucket, info.step, lane});
}

Tensor Means::take(int bucket) {
  const auto b = static_cast<std::size_t>(bucket);
  tickets_[b] = 0;
  Tensor own = std::exchange(numbers_[b], Tensor());
  return transport_.size() > 1 ? sums_[b].slice(0, Shape{own.elements()}) : own;
}

}  // namespace starling
