#include "comm/low_gradients.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace starling {
namespace {

/// A model that puts its gradients elsewhere in every step gets no more tables; it pays with a kernel a gradient.
constexpr std::size_t kMostTables = 8;

bool any_in_low(const Bucket& bucket) {
  if (!bucket.low_gradients.numbers) return false;
  return std::any_of(bucket.layout->slots.begin(), bucket.layout->slots.end(),
                     [](const BucketSlot& slot) { return slot.parameter->grad_in_low; });
}

bool fits(const LowGradients::Table& table, const BucketLayout& layout) {
  for (std::size_t i = 0; i < layout.slots.size(); ++i) {
    if ((table.in_low[i] != 0) != layout.slots[i].parameter->grad_in_low) return false;
  }
  return true;
}

LowGradients::Table make_table(Backend& backend, const Bucket& bucket) {
  LowGradients::Table table;
  std::vector<std::uint8_t> entries = bucket.low_gradients.decay;
  for (const BucketSlot& slot : bucket.layout->slots) {
    const bool low = slot.parameter->grad_in_low;
    table.in_low.push_back(low ? 1 : 0);
    const auto first = entries.begin() + slot.offset / kDecayBlock;
    if (low) std::for_each(first, first + slot.decay_entries(), [](std::uint8_t& entry) { entry |= kGradientIsLow; });
  }
  table.entries = Tensor(backend, bucket.decay.shape(), DType::kUInt8);
  backend.copy_from_host(entries.data(), table.entries);
  return table;
}

/// The step's table. Empty where all gradients are fp32: because they were, or because each of them has been widened here, for want of a
/// table that a capture could not make.
Tensor table_of(Backend& backend, Bucket& bucket) {
  if (!any_in_low(bucket)) return {};
  LowGradients& low = bucket.low_gradients;
  for (const LowGradients::Table& table : low.tables) {
    if (fits(table, *bucket.layout)) return table.entries;
  }
  if (!backend.capturing() && low.tables.size() < kMostTables) {
    low.tables.push_back(make_table(backend, bucket));
    return low.tables.back().entries;
  }
  for (const BucketSlot& slot : bucket.layout->slots) {
    Parameter& parameter = *slot.parameter;
    if (!parameter.grad_in_low) continue;
    backend.cast({.x = parameter.grad_low, .y = parameter.grad});
    parameter.grad_in_low = false;
  }
  return {};
}

}  // namespace

void set_gradients(Backend& backend, Bucket& bucket, UpdateArgs& args) {
  const Tensor table = table_of(backend, bucket);
  args.gradient = bucket.gradients;
  args.gradient_low = table ? bucket.low_gradients.numbers : Tensor();
  args.decay = table ? table : bucket.decay;
}

void widen_gradients(Backend& backend, Bucket& bucket) {
  const Tensor table = table_of(backend, bucket);
  if (!table) return;
  backend.cast({.x = bucket.low_gradients.numbers, .y = bucket.gradients, .blocks = table, .mask = kGradientIsLow});
  for (const BucketSlot& slot : bucket.layout->slots) slot.parameter->grad_in_low = false;
}

}  // namespace starling
