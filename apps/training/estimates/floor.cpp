#include "apps/training/estimates/floor.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "comm/bucket.h"
#include "core/error.h"
#include "core/operations/updates.h"

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

}  // namespace starling
