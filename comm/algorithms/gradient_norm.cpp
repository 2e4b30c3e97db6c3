#include "comm/algorithms/gradient_norm.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace starling {

GradientNorm::GradientNorm(Backend& backend, const std::vector<Bucket>& buckets) : backend_(backend), buckets_(buckets) {
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

void GradientNorm::measure_bucket(int bucket) {
  backend_.fill(totals_.slice(first_[static_cast<std::size_t>(bucket)], Shape{parameters_of(bucket)}), 0.0);
  add_bucket(bucket);
}

void GradientNorm::measure_all() {
  backend_.fill(totals_, 0.0);
  for (std::size_t b = 0; b < buckets_.size(); ++b) add_bucket(static_cast<int>(b));
}

void GradientNorm::control_of_bucket(int bucket, double scale, double clip, const Tensor& control) {
  backend_.gradient_control({totals_, first_[static_cast<std::size_t>(bucket)], parameters_of(bucket), scale, clip, false, control});
}

void GradientNorm::control_of_all(double scale, double clip, bool check_finite, const Tensor& control) {
  backend_.gradient_control({totals_, 0, first_.back(), scale, clip, check_finite, control});
}

void GradientNorm::add_bucket(int bucket) {
  const Bucket& b = buckets_[static_cast<std::size_t>(bucket)];
  std::int64_t index = first_[static_cast<std::size_t>(bucket)];
  for (const BucketSlot& slot : b.layout->slots) {
    // Of low precision the squares and their order are those of the same numbers in fp32.
    const Tensor& gradient = slot.parameter->grad_in_low ? b.low_gradients.numbers : b.gradients;
    backend_.squared_distance({gradient.slice(slot.offset, Shape{slot.elements}), {}, totals_, index++});
  }
}

}  // namespace starling
