#include "comm/bucket.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "comm/agreement.h"
#include "comm/replica.h"
#include "core/error.h"

namespace starling {
namespace {

constexpr std::int64_t kPadding = kDecayBlock;  // elements; 128 bytes in fp32

void append(BucketLayout& bucket, Parameter* parameter) {
  const std::int64_t elements = parameter->shape.elements();
  bucket.slots.push_back({parameter, bucket.elements, elements});
  bucket.elements += (elements + kPadding - 1) / kPadding * kPadding;
}

/// Where the last parameter ends, with its own padding.
std::int64_t end_of(const BucketLayout& layout) {
  if (layout.slots.empty()) return 0;
  const BucketSlot& last = layout.slots.back();
  return last.offset + last.decay_entries() * kDecayBlock;
}

void note_place(BucketPlan& plan, const Parameter& parameter, int bucket) {
  require(parameter.index >= 0, "bucket", "parameter '{}' has no index", parameter.name);
  const auto index = static_cast<std::size_t>(parameter.index);
  if (plan.bucket_of.size() <= index) plan.bucket_of.resize(index + 1, -1);
  require(plan.bucket_of[index] < 0, "bucket", "parameter '{}' was traced twice", parameter.name);
  plan.bucket_of[index] = bucket;
}

}  // namespace

BucketPlan plan_buckets(const std::vector<Parameter*>& ready_order,
                        const std::vector<Parameter*>& unused, DType dtype, double bucket_bytes) {
  BucketPlan plan;
  bool open = false;
  for (Parameter* parameter : ready_order) {
    if (!parameter->trainable) continue;
    if (!open) plan.buckets.emplace_back();
    append(plan.buckets.back(), parameter);
    note_place(plan, *parameter, static_cast<int>(plan.buckets.size()) - 1);
    open = static_cast<double>(plan.buckets.back().elements) * static_cast<double>(size_of(dtype)) <
           bucket_bytes;
  }
  for (Parameter* parameter : unused) {
    if (!parameter->trainable) continue;
    if (plan.buckets.empty()) plan.buckets.emplace_back();
    append(plan.buckets.back(), parameter);
    note_place(plan, *parameter, static_cast<int>(plan.buckets.size()) - 1);
  }
  return plan;
}

void split_buckets(BucketPlan& plan, int parts, std::int64_t block, bool whole) {
  require(parts > 0 && block > 0 && block % kPadding == 0, "bucket", "{} parts of blocks of {}",
          parts, block);
  for (BucketLayout& bucket : plan.buckets) {
    bucket.parts = {0};
    const std::int64_t end = end_of(bucket);
    if (!whole) {
      const std::int64_t each = (end + parts * block - 1) / (parts * block) * block;
      for (int part = 1; part <= parts; ++part) bucket.parts.push_back(part * each);
    } else {
      for (int part = 1; part < parts; ++part) {
        // Where the parameter begins that is nearest to an equal share. Where none is left, parts
        // are of padding alone.
        const std::int64_t before = bucket.parts.back(), ideal = end * part / parts;
        std::int64_t at = before < end ? end : before + kPadding;
        for (const BucketSlot& slot : bucket.slots) {
          if (slot.offset > before && std::abs(slot.offset - ideal) < std::abs(at - ideal))
            at = slot.offset;
        }
        bucket.parts.push_back(at);
      }
      bucket.parts.push_back(std::max(end, bucket.parts.back() + kPadding));
    }
    bucket.elements = bucket.parts.back();
  }
}

std::vector<VectorRange> vectors_of(const BucketLayout& layout) {
  std::vector<VectorRange> ranges;
  for (const BucketSlot& slot : layout.slots) {
    if (slot.parameter->is_weight()) continue;
    const std::int64_t elements = slot.decay_entries() * kDecayBlock;
    if (!ranges.empty() && ranges.back().first + ranges.back().elements == slot.offset) {
      ranges.back().elements += elements;
    } else {
      const std::int64_t place = ranges.empty() ? 0 : ranges.back().place + ranges.back().elements;
      ranges.push_back({slot.offset, elements, place});
    }
  }
  return ranges;
}

namespace {

/// `rule` null: states as long as the buckets.
std::vector<Bucket> make_buckets(const BucketPlan& plan, Backend& backend, DType dtype,
                                 std::size_t states, const OptimizerRule* rule, bool decay_all,
                                 DType compute, GradientMemory gradients, Replica* replica,
                                 const FindNumbers& find) {
  std::vector<Bucket> buckets;
  buckets.reserve(plan.buckets.size());
  const bool low = compute == DType::kBFloat16 || compute == DType::kFloat16;
  const auto zeroed = [&](std::int64_t elements, DType type) {
    Tensor tensor(backend, Shape{elements}, type);
    backend.fill(tensor, 0.0);
    return tensor;
  };
  const auto kept = [&](std::int64_t elements, DType type, ElementRange used) {
    return allocate_in(replica, backend, Shape{elements}, type, used);
  };
  const auto found = [&](const Bucket& bucket, const std::string& prefix, std::int64_t elements,
                         ElementRange used) {
    const Tensor has = find ? find(bucket, prefix, elements, dtype) : Tensor();
    return has ? has : kept(elements, dtype, used);
  };
  for (const BucketLayout& layout : plan.buckets) {
    Bucket bucket;
    bucket.layout = &layout;
    const ElementRange all{0, layout.elements};
    if (replica) {
      const auto place = static_cast<std::size_t>(replica->place());
      bucket.own = {layout.parts[place], layout.parts[place + 1] - layout.parts[place]};
    }
    bucket.divided = replica && !replica->shares_memory() && low;
    bucket.parameters = found(bucket, "model", layout.elements, bucket.divided ? *bucket.own : all);
    if (const auto ranges = vectors_of(layout); bucket.divided && !ranges.empty())
      bucket.vectors = zeroed(ranges.back().place + ranges.back().elements, dtype);
    bucket.gradient_memory = gradients;
    if (gradients == GradientMemory::kAlways) bucket.gradients = zeroed(layout.elements, dtype);
    std::int64_t state_elements = 0;
    for (const BucketSlot& slot : layout.slots) {
      const LayerExtent layer = layer_of(slot);
      const bool own = rule && rule->state_elements(layer) > 0;
      const std::int64_t elements = rule ? state_elements_of(*rule, layer) : layer.elements;
      bucket.state_extents.push_back({state_elements, elements, own});
      state_elements += elements;
    }
    // A part of padding alone has states too
    state_elements += layout.elements - end_of(layout);
    ElementRange used{0, state_elements};
    if (bucket.own) {
      used.first = state_place(bucket, bucket.own->first);
      used.elements = state_place(bucket, bucket.own->first + bucket.own->elements) - used.first;
    }
    for (std::size_t i = 0; i < states; ++i)
      bucket.states.push_back(
          found(bucket, rule ? "optimizer." + rule->facts().states[i] : "", state_elements, used));
    if (low) bucket.low = kept(layout.elements, compute, all);
    std::vector<std::uint8_t> decay(static_cast<std::size_t>(layout.elements / kDecayBlock), 0);
    for (const BucketSlot& slot : layout.slots) {
      Parameter& parameter = *slot.parameter;
      parameter.grad =
          bucket.gradients ? bucket.gradients.slice(slot.offset, parameter.shape) : Tensor();
      const auto first = decay.begin() + slot.offset / kDecayBlock;
      if (decay_all || parameter.is_weight()) std::fill_n(first, slot.decay_entries(), kDecays);
    }
    view_numbers(bucket, bucket.parameters, bucket.low, bucket.vectors);
    bucket.decay = Tensor(backend, Shape{layout.elements / kDecayBlock}, DType::kUInt8);
    backend.copy_from_host(decay.data(), bucket.decay);
    buckets.push_back(std::move(bucket));
  }
  backend.synchronize();  // the host vectors above die here
  return buckets;
}

}  // namespace

std::vector<Bucket> make_buckets(const BucketPlan& plan, Backend& backend, DType dtype, int states,
                                 bool decay_all, DType compute) {
  return make_buckets(plan, backend, dtype, static_cast<std::size_t>(states), nullptr, decay_all,
                      compute, GradientMemory::kAlways, nullptr, {});
}

std::vector<Bucket> make_buckets(const BucketPlan& plan, Backend& backend, DType dtype,
                                 const OptimizerRule& rule, bool decay_all, DType compute,
                                 GradientMemory gradients, Replica* replica,
                                 const FindNumbers& find) {
  return make_buckets(plan, backend, dtype, rule.facts().states.size(), &rule, decay_all, compute,
                      gradients, replica, find);
}

GradientMemory usual_gradient_memory(const Backend& backend) {
  return backend.device() == DeviceType::kCpu ? GradientMemory::kPassing : GradientMemory::kAlways;
}

std::int64_t state_place(const Bucket& bucket, std::int64_t at) {
  std::int64_t end = 0;
  for (std::size_t k = 0; k < bucket.layout->slots.size(); ++k) {
    const BucketSlot& slot = bucket.layout->slots[k];
    const StateExtent& extent = bucket.state_extents[k];
    const std::int64_t slot_end = slot.offset + slot.decay_entries() * kDecayBlock;
    if (at >= slot.offset && at < slot_end) return extent.first + at - slot.offset;
    end = extent.first + extent.elements;
    if (k + 1 == bucket.layout->slots.size()) end += at - slot_end;  // padding
  }
  return end;
}

Tensor own_states(const Bucket& bucket, const Tensor& state) {
  if (!bucket.own) return state;
  const std::int64_t first = state_place(bucket, bucket.own->first),
                     end = state_place(bucket, bucket.own->first + bucket.own->elements);
  return state.slice(first, Shape{end - first});
}

LayerExtent layer_of(const BucketSlot& slot) { return layer_of(*slot.parameter); }

LayerExtent layer_of(const Parameter& parameter) {
  const std::int64_t elements = parameter.shape.elements();
  LayerExtent layer{.elements = (elements + kDecayBlock - 1) / kDecayBlock * kDecayBlock,
                    .weight = parameter.is_weight()};
  layer.padding = layer.elements - elements;
  if (layer.weight) layer.rows = parameter.shape[0], layer.columns = elements / parameter.shape[0];
  return layer;
}

void Bucket::flip() {
  if (!spare) return;
  std::swap(parameters, spare);
  view_numbers(*this, parameters, low, vectors);
}

void view_numbers(const Bucket& bucket, const Tensor& parameters, const Tensor& low,
                  const Tensor& vectors) {
  std::int64_t place = 0;  // of the next vector
  for (const BucketSlot& slot : bucket.layout->slots) {
    Parameter& parameter = *slot.parameter;
    parameter.low = low ? low.slice(slot.offset, parameter.shape) : Tensor();
    if (!bucket.divided) {
      parameter.value = parameters.slice(slot.offset, parameter.shape);
    } else if (parameter.is_weight()) {
      parameter.value = Tensor();
    } else {
      parameter.value = vectors.slice(place, parameter.shape);
      place += slot.decay_entries() * kDecayBlock;
    }
  }
}

void Bucket::hold_gradients() {
  if (gradients) return;
  Backend& backend = parameters.backend();
  gradients = gradient_place ? gradient_place(parameters.shape(), parameters.dtype())
                             : Tensor(backend, parameters.shape(), parameters.dtype());
  for (std::size_t k = 0; k < layout->slots.size(); ++k) {
    const BucketSlot& slot = layout->slots[k];
    slot.parameter->grad = gradients.slice(slot.offset, slot.parameter->shape);
    const std::int64_t end = slot.offset + slot.elements, next = k + 1 < layout->slots.size()
                                                                     ? layout->slots[k + 1].offset
                                                                     : layout->elements;
    if (next > end) backend.fill(gradients.slice(end, Shape{next - end}), 0.0);
  }
}

void Bucket::drop_gradients() {
  if (gradient_memory == GradientMemory::kAlways) return;
  gradients = Tensor();
  for (const BucketSlot& slot : layout->slots) slot.parameter->grad = Tensor();
}

void set_groups(Backend& backend, std::vector<Bucket>& buckets,
                const std::function<std::size_t(const Parameter&)>& group_of,
                const std::vector<bool>& decays) {
  for (Bucket& bucket : buckets) {
    std::vector<std::uint8_t> entries(static_cast<std::size_t>(bucket.decay.elements()));
    backend.copy_to_host(bucket.decay, entries.data());
    bucket.runs.clear();
    for (std::size_t k = 0; k < bucket.layout->slots.size(); ++k) {
      const BucketSlot& slot = bucket.layout->slots[k];
      const StateExtent& state = bucket.state_extents[k];
      const std::size_t group = group_of(*slot.parameter);
      const std::int64_t elements = slot.decay_entries() * kDecayBlock;
      if (decays[group])
        std::fill_n(entries.begin() + slot.offset / kDecayBlock, slot.decay_entries(), kDecays);
      if (!bucket.runs.empty() && bucket.runs.back().group == group) {
        bucket.runs.back().elements = slot.offset + elements - bucket.runs.back().first;
        bucket.runs.back().state_elements += state.elements;
      } else {
        bucket.runs.push_back({slot.offset, elements, group, state.first, state.elements});
      }
    }
    if (!bucket.runs.empty())
      // The last run includes the bucket's padding.
      bucket.runs.back().elements = bucket.layout->elements - bucket.runs.back().first;
    if (bucket.runs.size() == 1 && bucket.runs[0].group == 0) bucket.runs.clear();
    backend.copy_from_host(entries.data(), bucket.decay);
  }
}

std::vector<LayerExtent> layers_in(const Bucket& bucket, BucketRun run) {
  if (run.elements == 0) run.elements = bucket.layout->elements;
  std::vector<LayerExtent> layers;
  for (const BucketSlot& slot : bucket.layout->slots) {
    if (slot.offset < run.first || slot.offset >= run.first + run.elements) continue;
    layers.push_back(layer_of(slot));
    layers.back().first = slot.offset - run.first;
  }
  // A replica's rank may have a part of padding alone
  if (layers.empty()) layers.push_back({.elements = run.elements, .weight = false});
  return layers;
}

UpdateLayers update_layers(Backend& backend, const OptimizerRule& rule, const Bucket& bucket,
                           BucketRun run, const Tensor& workspace) {
  const std::vector<LayerExtent> layers = layers_in(bucket, run);
  UpdateLayers tables = make_update_layers(
      backend, layers, run.elements > 0 ? run.elements : bucket.layout->elements);
  add_matrices(backend, rule, bucket.parameters.dtype(), layers, tables, workspace);
  return tables;
}

namespace {

/// One line per parameter in traced order: everything that must be the same on all ranks.
std::vector<std::string> plan_lines(const BucketPlan& plan, DType dtype) {
  std::vector<std::string> lines;
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    for (const BucketSlot& slot : plan.buckets[b].slots) {
      lines.push_back(fmt::format("'{}' ({} {}, bucket {})", slot.parameter->name,
                                  slot.parameter->shape.text(), name_of(dtype), b));
    }
  }
  return lines;
}

std::string join(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

}  // namespace

void agree_on_plan(const BucketPlan& plan, DType dtype, World& world) {
  const auto found = find_disagreement(world, join(plan_lines(plan, dtype)));
  if (!found) return;
  const std::vector<std::string> a = split(found->first), b = split(found->other);
  std::size_t place = 0;
  while (place < a.size() && place < b.size() && a[place] == b[place]) ++place;
  const auto at = [&](const std::vector<std::string>& lines) {
    return place < lines.size() ? lines[place] : std::string("no more parameters");
  };
  fail(ExitCode::kUsage, "plan",
       "ranks 0 and {} disagree on the model: at place {} of the traced order rank 0 has {}, rank "
       "{} has {}; all ranks need the same program and config",
       found->rank, place, at(a), found->rank, at(b));
}

}  // namespace starling
