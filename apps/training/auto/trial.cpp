#include "apps/training/auto/trial.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "apps/training/estimates/floor.h"
#include "comm/bucket.h"
#include "core/autograd.h"
#include "core/core_wait.h"
#include "core/operations/updates.h"

namespace starling {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPasses = 3;         // after one that warms up
constexpr double kLongPass = 2.0;  // seconds: one such pass says enough

struct PassTimes {
  double forward = 0.0, backward = 0.0;
  std::vector<double> ready;  ///< seconds into the backward pass, in the order of readiness
};

PassTimes time_pass(const TrainConfig& config, const Batch& batch, Backend& backend) {
  PassTimes times;
  Clock::time_point start = Clock::now();
  const auto lap = [&] {
    backend.synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  Tape tape(backend);
  tape.set_ready_observer([&](Parameter&) { times.ready.push_back(lap()); });
  Pass pass{.backend = backend,
            .tape = &tape,
            .training = true,
            .recompute = config.device.recompute.value_or(Pass::usual_recompute(backend.device()))};
  training_pass(*config.task, *config.model, batch, pass, {.before_backward = [&](const Variable&) {
    times.forward = lap();
    start = Clock::now();
  }});
  times.backward = lap();
  return times;
}

/// Flops a second that the work on the matrix with the most of them reaches, with all else that
/// belongs to it; 0: no parameter has any.
double matrix_rate(const TrainConfig& config, Backend& backend) {
  const OptimizerRule* rule = nullptr;
  LayerExtent layer;
  double flops = 0.0;
  for (const Parameter* parameter : config.model->parameters()) {
    const double own = parameter->trainable ? matrix_flops(config, *parameter) : 0.0;
    if (own <= flops) continue;
    rule = &config.optimizer.rule_of(*parameter);
    layer = layer_of(*parameter);
    flops = own;
  }
  if (!rule) return 0.0;
  const auto numbers = [&](std::int64_t count) {
    Tensor tensor(backend, Shape{count}, config.device.dtype);
    // The norm is below 1, as a direction has
    backend.fill(tensor, 0.5 / std::sqrt(static_cast<double>(layer.rows * layer.columns)));
    return tensor;
  };
  UpdateArgs args{.x = numbers(layer.elements), .gradient = numbers(layer.elements)};
  args.x_out = args.x;
  for (std::size_t k = 0; k < rule->facts().states.size(); ++k)
    args.states.push_back(numbers(layer.elements));
  args.decay = Tensor(backend, Shape{layer.elements / kDecayBlock}, DType::kUInt8);
  backend.fill(args.decay, 0.0);
  const Tensor workspace = numbers(rule->workspace({layer}));
  double seconds = 0.0;
  for (int run = 0; run < 2 && seconds <= kLongPass; ++run) {  // the first one warms up
    backend.synchronize();
    const Clock::time_point start = Clock::now();
    rule->finish_matrix(backend, args, layer, workspace);
    backend.synchronize();
    seconds = std::chrono::duration<double>(Clock::now() - start).count();
  }
  return flops / std::max(seconds, 1e-9);
}

}  // namespace

StepModel time_passes(TrainConfig& config, const ShapeTrace& trace, Backend& backend) {
  Model& model = *config.model;
  model.allocate(backend, config.device.dtype, config.device.compute);
  model.initialise(config.seed);
  model.refresh_low();
  const CoreWait core_wait;
  std::vector<PassTimes> passes;
  {
    const Batch batch = empty_batch(config.task->tensors(), backend, config.length.batch_size,
                                    config.pass_shape().activations());
    for (const Batch::Named& named : batch.tensors)
      backend.fill(named.tensor, is_floating(named.tensor.dtype()) ? 0.5 : 0.0);
    PassTimes first = time_pass(config, batch, backend);
    if (first.forward + first.backward > kLongPass) passes.push_back(std::move(first));
    while (passes.size() < kPasses &&
           (passes.empty() || passes.front().forward + passes.front().backward <= kLongPass)) {
      passes.push_back(time_pass(config, batch, backend));
    }
  }
  model.drop_memory();

  std::sort(passes.begin(), passes.end(), [](const PassTimes& a, const PassTimes& b) {
    return a.forward + a.backward < b.forward + b.backward;
  });
  const PassTimes& middle = passes[passes.size() / 2];
  const auto groups = static_cast<double>(config.length.accumulate);
  StepModel step = untimed_step(config, trace);
  const auto whole = [](const PassTimes& pass) { return pass.forward + pass.backward; };
  step.noise =
      std::max(core_wait.share(), (whole(passes.back()) - whole(passes.front())) / whole(middle));
  step.matrix_flops_per_second = matrix_rate(config, backend);
  // All but the last micro-batch of a step are computation before the first gradient is ready.
  step.forward = middle.forward + (groups - 1.0) * (middle.forward + middle.backward);
  step.backward = middle.backward;
  for (std::size_t i = 0; i < std::min(step.tensors.size(), middle.ready.size()); ++i) {
    step.tensors[i].ready = std::min(middle.ready[i] / std::max(middle.backward, 1e-9), 1.0);
  }
  return step;
}

}  // namespace starling
