#include "comm/algorithms/gradient_norm.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "comm/replica.h"
#include "core/operations/pointwise.h"
#include "core/operations/updates.h"

namespace starling {

std::optional<double> GradientRecord::norm(std::int64_t of_step) const {
  if (step != of_step) return std::nullopt;
  std::vector<double> sums(static_cast<std::size_t>(squares.elements()));
  squares.backend().copy_to_host(squares, sums.data());
  double total = std::accumulate(sums.begin(), sums.end(), 0.0);
  if (replica) replica->sum(&total, 1, {.step = of_step});
  return scale * std::sqrt(total);
}

GradientNorm::GradientNorm(Backend& backend, const std::vector<Bucket>& buckets, Replica* replica)
    : backend_(backend), buckets_(buckets), replica_(replica) {
  std::int64_t count = 0;
  for (const Bucket& bucket : buckets) {
    first_.push_back(count);
    count += replica ? 1 : static_cast<std::int64_t>(bucket.layout->slots.size());
  }
  first_.push_back(count);
  totals_ = Tensor(backend, Shape{std::max<std::int64_t>(count, 1)}, DType::kFloat64);
}

void GradientNorm::control(int begin, int end, double scale, double clip, bool check_finite,
                           const Tensor& control) {
  const std::int64_t first = first_[static_cast<std::size_t>(begin)];
  backend_.gradient_control({totals_, first, first_[static_cast<std::size_t>(end)] - first, scale,
                             clip, check_finite, control});
}

void GradientNorm::measure(int begin, int end) {
  std::vector<Tensor> gradients;
  for (int b = begin; b < end; ++b) {
    const Bucket& bucket = buckets_[static_cast<std::size_t>(b)];
    if (replica_) gradients.push_back(bucket.gradients);  // a part, whose padding is 0
    for (std::size_t k = 0; !replica_ && k < bucket.layout->slots.size(); ++k) {
      const BucketSlot& slot = bucket.layout->slots[k];
      gradients.push_back(bucket.gradients.slice(slot.offset, Shape{slot.elements}));
    }
  }
  const std::int64_t first = first_[static_cast<std::size_t>(begin)];
  backend_.squared_norms({gradients, totals_, first});
  if (replica_)
    replica_->sum(totals_.slice(first, Shape{first_[static_cast<std::size_t>(end)] - first}));
}

}  // namespace starling
