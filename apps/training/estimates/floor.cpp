#include "apps/training/estimates/floor.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "comm/bucket.h"
#include "core/autograd.h"
#include "core/error.h"
#include "core/operations/updates.h"

namespace starling {

std::vector<OperationWork> count_pass(const Task& task, Model& model, const PassShape& shape) {
  const auto meta = make_meta_backend();
  CountingBackend backend(*meta);
  model.allocate(backend, shape.dtype, shape.compute);
  {
    Tape tape(backend);
    Pass pass{.backend = backend,
              .tape = &tape,
              .training = true,
              .lean = shape.device != DeviceType::kCuda};
    training_pass(task, model,
                  empty_batch(task.tensors(), backend, shape.batch_size, shape.activations()),
                  pass);
  }
  model.drop_memory();
  return backend.take();
}

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
  backend.take();
  rule.issue(backend, args);
  std::vector<OperationWork> work = backend.take();
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

std::vector<OperationWork> count_step_update(const TrainConfig& config, double parameters,
                                             double received, const Ceilings& device) {
  std::vector<OperationWork> work{count_update(*config.optimizer.rule, parameters, received,
                                               config.device.dtype, config.device.compute)};
  std::map<const OptimizerRule*, std::vector<LayerExtent>> layers;
  for (const Parameter* parameter : config.model->parameters()) {
    if (parameter->trainable)
      layers[&config.optimizer.rule_of(*parameter)].push_back(layer_of(*parameter));
  }
  for (const auto& [rule, own] : layers) {
    const std::vector<OperationWork> matrices =
        count_matrices(*rule, own, config.device.dtype, work.front());
    work.insert(work.end(), matrices.begin(), matrices.end());
  }
  for (OperationWork& operation : work)
    operation.flops_per_second = device.flops(config.device.dtype, config.device.tf32);
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
