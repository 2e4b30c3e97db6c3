#include "comm/algorithms/gradient_norm.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/operations/pointwise.h"
#include "core/operations/updates.h"

namespace starling {

GradientNorm::GradientNorm(Backend& backend, const std::vector<Bucket>& buckets)
    : backend_(backend), buckets_(buckets) {
  std::int64_t count = 0;
  for (const Bucket& bucket : buckets) {
    first_.push_back(count);
    count += static_cast<std::int64_t>(bucket.layout->slots.size());
  }
  first_.push_back(count);
  totals_ = Tensor(backend, Shape{std::max<std::int64_t>(count, 1)}, DType::kFloat64);
}

std::int64_t GradientNorm::parameters_of(int bucket) const {
  const auto b = static_cast<std::size_t>(bucket);
  return first_[b + 1] - first_[b];
}

void GradientNorm::measure_bucket(int bucket) { measure(bucket, bucket + 1); }

void GradientNorm::measure_all() { measure(0, static_cast<int>(buckets_.size())); }

void GradientNorm::control_of_bucket(int bucket, double scale, double clip, const Tensor& control) {
  backend_.gradient_control({totals_, first_[static_cast<std::size_t>(bucket)],
                             parameters_of(bucket), scale, clip, false, control});
}

void GradientNorm::control_of_all(double scale, double clip, bool check_finite,
                                  const Tensor& control) {
  backend_.gradient_control({totals_, 0, first_.back(), scale, clip, check_finite, control});
}

void GradientNorm::measure(int begin, int end) {
  std::vector<Tensor> gradients;
  for (int b = begin; b < end; ++b) {
    const Bucket& bucket = buckets_[static_cast<std::size_t>(b)];
    for (const BucketSlot& slot : bucket.layout->slots)
      gradients.push_back(bucket.gradients.slice(slot.offset, Shape{slot.elements}));
  }
  backend_.squared_norms({gradients, totals_, first_[static_cast<std::size_t>(begin)]});
}

}  // namespace starling
