#include "comm/algorithms/gradient_norm.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace starling {

GradientNorm::GradientNorm(Backend& backend, const std::vector<Bucket>& buckets) : backend_(backend), buckets_(buckets) {
  std::size_t count = 0;
  for (const Bucket& bucket : buckets) {
    first_.push_back(count);
    count += bucket.layout->slots.size();
  }
  first_.push_back(count);
  host_.resize(count);
  if (count) totals_ = Tensor(backend, Shape{static_cast<std::int64_t>(count)}, DType::kFloat64);
}

double GradientNorm::of_bucket(int bucket) {
  const auto b = static_cast<std::size_t>(bucket);
  backend_.fill(totals_, 0.0);
  add_bucket(bucket);
  return read(first_[b], first_[b + 1] - first_[b]);
}

double GradientNorm::of_all() {
  if (host_.empty()) return 0.0;
  backend_.fill(totals_, 0.0);
  for (std::size_t b = 0; b < buckets_.size(); ++b) add_bucket(static_cast<int>(b));
  return read(0, host_.size());
}

void GradientNorm::add_bucket(int bucket) {
  const Bucket& b = buckets_[static_cast<std::size_t>(bucket)];
  auto index = static_cast<std::int64_t>(first_[static_cast<std::size_t>(bucket)]);
  for (const BucketSlot& slot : b.layout->slots) {
    backend_.squared_distance({b.gradients.slice(slot.offset, Shape{slot.elements}), {}, totals_, index++});
  }
}

double GradientNorm::read(std::size_t first, std::size_t count) {
  backend_.copy_to_host(totals_, host_.data());
  double sum = 0.0;
  for (std::size_t i = first; i < first + count; ++i) sum += host_[i];
  return std::sqrt(sum);
}

double clip_factor(const ClipSettings& clip, double norm) {
  if (clip.norm <= 0.0) return 1.0;
  const double factor = clip.norm / (norm + 1e-6);
  return factor < 1.0 ? factor : 1.0;  // a NaN norm leaves the NaN gradient as it is, to be noticed
}

}  // namespace starling
