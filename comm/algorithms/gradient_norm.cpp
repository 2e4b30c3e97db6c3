#include "comm/algorithms/gradient_norm.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>

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
    // A part of padding alone has one, too, for the sum over parts
    count += std::max<std::int64_t>(static_cast<std::int64_t>(bucket.layout->slots.size()), 1);
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
    for (const BucketSlot& slot : bucket.layout->slots)
      gradients.push_back(bucket.gradients.slice(slot.offset, Shape{slot.elements}));
    if (bucket.layout->slots.empty()) gradients.push_back(bucket.gradients);
  }
  const std::int64_t first = first_[static_cast<std::size_t>(begin)];
  backend_.squared_norms({gradients, totals_, first});
  if (!replica_) return;
  // Each bucket's sum over all parts, in the place of its first parameter
  const Tensor totals = totals_.slice(first, Shape{first_[static_cast<std::size_t>(end)] - first});
  std::vector<double> own(static_cast<std::size_t>(totals.elements())),
      sums(static_cast<std::size_t>(end - begin));
  backend_.copy_to_host(totals, own.data());
  const auto range = [&](std::size_t b) {
    const auto place = [&](std::size_t k) {
      return own.begin() + first_[static_cast<std::size_t>(begin) + k] - first;
    };
    return std::pair(place(b), place(b + 1));
  };
  for (std::size_t b = 0; b < sums.size(); ++b)
    sums[b] = std::accumulate(range(b).first, range(b).second, 0.0);
  replica_->sum(sums.data(), sums.size());
  std::fill(own.begin(), own.end(), 0.0);
  for (std::size_t b = 0; b < sums.size(); ++b) *range(b).first = sums[b];
  backend_.copy_from_host(own.data(), totals);
}

}  // namespace starling
