#include "comm/bucket.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/error.h"

namespace starling {
namespace {

constexpr std::int64_t kPadding = kDecayBlock;  // elements; 128 bytes in fp32

void append(BucketLayout& bucket, Parameter* parameter) {
  const std::int64_t elements = parameter->shape.elements();
  bucket.slots.push_back({parameter, bucket.elements, elements});
  bucket.elements += (elements + kPadding - 1) / kPadding * kPadding;
}

void note_place(BucketPlan& plan, const Parameter& parameter, int bucket) {
  require(parameter.index >= 0, "bucket", "parameter '{}' has no index", parameter.name);
  const auto index = static_cast<std::size_t>(parameter.index);
  if (plan.bucket_of.size() <= index) plan.bucket_of.resize(index + 1, -1);
  require(plan.bucket_of[index] < 0, "bucket", "parameter '{}' was traced twice", parameter.name);
  plan.bucket_of[index] = bucket;
}

}  // namespace

BucketPlan plan_buckets(const std::vector<Parameter*>& ready_order, const std::vector<Parameter*>& unused, DType dtype,
                        double bucket_bytes) {
  BucketPlan plan;
  bool open = false;
  for (Parameter* parameter : ready_order) {
    if (!parameter->trainable) continue;
    if (!open) plan.buckets.emplace_back();
    append(plan.buckets.back(), parameter);
    note_place(plan, *parameter, static_cast<int>(plan.buckets.size()) - 1);
    open = static_cast<double>(plan.buckets.back().elements) * static_cast<double>(size_of(dtype)) < bucket_bytes;
  }
  for (Parameter* parameter : unused) {
    if (!parameter->trainable) continue;
    if (plan.buckets.empty()) plan.buckets.emplace_back();
    append(plan.buckets.back(), parameter);
    note_place(plan, *parameter, static_cast<int>(plan.buckets.size()) - 1);
  }
  return plan;
}

std::vector<Bucket> make_buckets(const BucketPlan& plan, Backend& backend, DType dtype, int states, bool decay_all, DType compute) {
  std::vector<Bucket> buckets;
  buckets.reserve(plan.buckets.size());
  const bool low = compute == DType::kBFloat16 || compute == DType::kFloat16;
  const bool low_gradients = low && dtype == DType::kFloat32 && backend.low_precision_gradients(compute);
  const auto zeroed = [&](std::int64_t elements, DType type) {
    Tensor tensor(backend, Shape{elements}, type);
    backend.fill(tensor, 0.0);
    return tensor;
  };
  for (const BucketLayout& layout : plan.buckets) {
    Bucket bucket;
    bucket.layout = &layout;
    bucket.parameters = zeroed(layout.elements, dtype);
    bucket.gradients = zeroed(layout.elements, dtype);
    for (int i = 0; i < states; ++i) bucket.states.push_back(zeroed(layout.elements, dtype));
    if (low) bucket.low = zeroed(layout.elements, compute);
    if (low_gradients) bucket.low_gradients.numbers = zeroed(layout.elements, compute);
    std::vector<std::uint8_t> decay(static_cast<std::size_t>(layout.elements / kDecayBlock), 0);
    for (const BucketSlot& slot : layout.slots) {
      Parameter& parameter = *slot.parameter;
      parameter.value = bucket.parameters.slice(slot.offset, parameter.shape);
      parameter.grad = bucket.gradients.slice(slot.offset, parameter.shape);
      parameter.low = low && parameter.product ? bucket.low.slice(slot.offset, parameter.shape) : Tensor();
      const Tensor& numbers = bucket.low_gradients.numbers;
      parameter.grad_low = numbers && parameter.product ? numbers.slice(slot.offset, parameter.shape) : Tensor();
      parameter.grad_in_low = false;
      const auto first = decay.begin() + slot.offset / kDecayBlock;
      if (decay_all || parameter.is_weight()) std::fill_n(first, slot.decay_entries(), kDecays);
    }
    bucket.decay = Tensor(backend, Shape{layout.elements / kDecayBlock}, DType::kUInt8);
    backend.copy_from_host(decay.data(), bucket.decay);
    if (low_gradients) bucket.low_gradients.decay = decay;
    buckets.push_back(std::move(bucket));
  }
  backend.synchronize();  // the host vectors above die here
  return buckets;
}

void Bucket::flip() {
  if (!spare) return;
  std::swap(parameters, spare);
  for (const BucketSlot& slot : layout->slots) slot.parameter->value = parameters.slice(slot.offset, slot.parameter->shape);
}

void refresh_low(Backend& backend, const std::vector<Bucket>& buckets) {
  for (const Bucket& bucket : buckets) {
    if (bucket.low) backend.cast({bucket.parameters, bucket.low});
  }
}

}  // namespace starling
