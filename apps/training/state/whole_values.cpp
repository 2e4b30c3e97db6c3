#include "apps/training/state/whole_values.h"

#include <algorithm>
#include <ranges>

#include "kernels/open_backend.h"

namespace starling {

WholeValues::WholeValues(const std::vector<Bucket>& buckets)
    : buckets_(buckets), values_(buckets.size()) {
  if (std::ranges::none_of(buckets, &Bucket::divided)) return;
  host_ = open_backend(DeviceType::kCpu, 1);
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    const Tensor& parameters = buckets[b].parameters;
    const Tensor values(*host_, parameters.shape(), parameters.dtype());
    host_->fill(values, 0.0);  // the padding
    give(b, values, true);
  }
}

WholeValues::WholeValues(const std::vector<Bucket>& buckets, Replica* replica,
                         const std::vector<Tensor>& parameters, bool read)
    : buckets_(buckets), values_(buckets.size()) {
  if (std::ranges::none_of(buckets, &Bucket::divided)) return;
  host_ = open_backend(DeviceType::kCpu, 1);
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    const Tensor whole = whole_in(replica, buckets[b], parameters[b]);
    if (!read) continue;
    const Tensor values(*host_, whole.shape(), whole.dtype());
    whole.backend().copy_to_host(whole, values.raw());
    give(b, values, false);
  }
}

WholeValues::~WholeValues() {
  for (const auto& [parameter, value] : before_) parameter->value = value;
}

void WholeValues::give(std::size_t bucket, const Tensor& values, bool vectors) {
  values_[bucket] = values;
  for (const BucketSlot& slot : buckets_[bucket].layout->slots) {
    Parameter& parameter = *slot.parameter;
    if (!vectors && !parameter.is_weight()) continue;
    before_.emplace_back(&parameter, parameter.value);
    parameter.value = values.slice(slot.offset, parameter.shape);
  }
}

void WholeValues::keep() const {
  for (std::size_t b = 0; b < values_.size(); ++b) {
    if (!values_[b]) continue;
    const Tensor own = buckets_[b].own_part(buckets_[b].parameters);
    own.backend().copy_from_host(buckets_[b].own_part(values_[b]).raw(), own);
    own.backend().synchronize();  // host memory may go
  }
}

}  // namespace starling
