#include "apps/training/estimates/floor.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "comm/bucket.h"
#include "core/error.h"
#include "core/operations/products.h"

namespace starling {

OperationWork count_update(const OptimizerRule& rule, double parameters, double received,
                           DType dtype, DType compute) {
  double bytes = static_cast<double>(rule.bytes_per_parameter(static_cast<int>(size_of(dtype)))) +
                 received * static_cast<double>(size_of(dtype));
  if (is_low_precision(compute)) bytes += static_cast<double>(size_of(compute));
  return {"update", parameters * bytes, 0.0};
}

std::vector<OperationWork> count_matrices(const OptimizerRule& rule,
                                          const std::vector<LayerExtent>& layers, DType dtype,
                                          OperationWork& pass) {
  if (rule.workspace(layers) == 0) return {};
  std::vector<LayerExtent> placed = layers;
  std::int64_t elements = 0, state_elements = 0;
  for (LayerExtent& layer : placed) {
    layer.first = elements;
    elements += layer.elements;
    state_elements += state_elements_of(rule, layer);
  }
  const auto meta = make_meta_backend();
  CountingBackend backend(*meta);
  const auto numbers = [&](std::int64_t count) { return Tensor(backend, Shape{count}, dtype); };
  UpdateArgs args{.x = numbers(elements), .gradient = numbers(elements)};
  args.x_out = args.x;
  for (std::size_t k = 0; k < rule.facts().states.size(); ++k)
    args.states.push_back(numbers(state_elements));
  args.decay = Tensor(backend, Shape{elements / kDecayBlock}, DType::kUInt8);
  add_matrices(backend, rule, dtype, placed, args.layers);
  backend.work.clear();
  rule.issue(backend, args);
  std::vector<OperationWork>& work = backend.work;
  if (args.layers.matrices.empty()) {
    for (const OperationWork& operation : work) pass.flops += operation.flops;
    return {};
  }
  // The first entry is the pass.
  require(!work.empty() && work.front().name == "update", "floor",
          "an update of whole matrices that does not begin with a pass");
  work.erase(work.begin());
  return work;
}

std::vector<OperationWork> count_step(const TrainConfig& config,
                                      const std::vector<OperationWork>& pass, double parameters,
                                      double received, const Ceilings& device) {
  std::vector<OperationWork> update{count_update(*config.optimizer.rule, parameters, received,
                                                 config.device.dtype, config.device.compute)};
  std::map<const OptimizerRule*, std::vector<LayerExtent>> layers;
  for (const Parameter* parameter : config.model->parameters()) {
    if (parameter->trainable)
      layers[&config.optimizer.rule_of(*parameter)].push_back(layer_of(*parameter));
  }
  for (const auto& [rule, own] : layers) {
    const std::vector<OperationWork> matrices =
        count_matrices(*rule, own, config.device.dtype, update.front());
    update.insert(update.end(), matrices.begin(), matrices.end());
  }
  for (OperationWork& operation : update)
    operation.flops_per_second = device.flops(config.device.dtype, config.device.tf32);
  std::vector<OperationWork> work;
  for (std::int64_t i = 0; i < config.length.accumulate; ++i)
    work.insert(work.end(), pass.begin(), pass.end());
  work.insert(work.end(), update.begin(), update.end());
  return work;
}

Floor floor_of(const std::vector<OperationWork>& work, double flops_per_second,
               double bytes_per_second) {
  Floor floor;
  for (const OperationWork& operation : work) {
    floor.bytes += operation.bytes;
    floor.flops += operation.flops;
    const double arithmetic =
        operation.flops /
        (operation.flops_per_second > 0.0 ? operation.flops_per_second : flops_per_second);
    floor.arithmetic_seconds += arithmetic;
    floor.seconds += std::max(operation.bytes / bytes_per_second, arithmetic);
  }
  floor.memory_seconds = floor.bytes / bytes_per_second;
  return floor;
}

namespace {

/// The fastest of some runs, after one that warms up.
double least_seconds(Backend& backend, const std::function<void()>& work) {
  constexpr int kRuns = 5;
  double least = 0.0;
  for (int run = 0; run <= kRuns; ++run) {
    backend.synchronize();
    const auto begin = std::chrono::steady_clock::now();
    work();
    backend.synchronize();
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (run > 0) least = run == 1 ? seconds : std::min(least, seconds);
  }
  return std::max(least, 1e-9);
}

Tensor filled(Backend& backend, const Shape& shape, DType dtype) {
  Tensor tensor(backend, shape, dtype);
  backend.fill(tensor, 0.5);
  return tensor;
}

/// Whether `word` stands between blanks, commas or the ends.
bool has_word(std::string_view text, std::string_view word) {
  constexpr std::string_view kEnds = " ,";
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of(kEnds), text.size());
    if (text.substr(0, end) == word) return true;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return false;
}

}  // namespace

double Ceilings::flops(DType compute, bool tf32) const {
  if (compute == DType::kFloat64) return fp64_flops;
  if (compute == DType::kFloat32) return tf32 ? tf32_flops : fp32_flops;
  return low_flops;
}

std::optional<Ceilings> known_ceilings(std::string_view device) {
  for (const char* slower : {"PCIe", "NVL", "MIG"}) {
    if (has_word(device, slower)) return std::nullopt;
  }
  for (const Ceilings& known : kCeilings) {
    if (has_word(device, known.device)) return known;
  }
  return std::nullopt;
}

double product_seconds(Backend& backend, DType compute, std::int64_t side, int calls) {
  const Tensor a = filled(backend, {side, side}, compute),
               b = filled(backend, {side, side}, compute),
               c = filled(backend, {side, side}, compute);
  return least_seconds(backend, [&] {
    for (int i = 0; i < calls; ++i) backend.matmul({.a = a, .b = b, .c = c});
  });
}

Ceilings measured_ceilings(Backend& backend, DType compute, std::int64_t copy_bytes,
                           std::int64_t side) {
  constexpr int kCalls = 4;
  Ceilings result{.device = "measured"};
  {
    const Shape half{copy_bytes / 2 / static_cast<std::int64_t>(sizeof(float))};
    const Tensor from = filled(backend, half, DType::kFloat32),
                 to = filled(backend, half, DType::kFloat32);
    const double seconds = least_seconds(backend, [&] {
      for (int i = 0; i < kCalls; ++i) backend.copy(from, to);
    });
    result.bytes_per_second = kCalls * 2.0 * static_cast<double>(from.bytes()) / seconds;
  }
  const double seconds = product_seconds(backend, compute, side, kCalls);
  const auto n = static_cast<double>(side);
  result.low_flops = result.fp32_flops = result.tf32_flops = result.fp64_flops =
      kCalls * 2.0 * n * n * n / seconds;
  return result;
}

}  // namespace starling
