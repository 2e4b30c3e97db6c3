#include "apps/training/tasks/training_pass.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "apps/data/loss_shares.h"
#include "core/device_trace.h"
#include "core/error.h"
#include "core/trace.h"
#include "layers/norm_statistics.h"

namespace starling {
namespace {

/// Shapes have no numbers to add up; it stands for several ranks, however many.
class ShapeSums final : public RankSums {
 public:
  int ranks() const override { return 2; }
  void sum(const Tensor&) override {}
};

/// A part of the pass, on the host's and the device's timeline.
struct PassSpan {
  explicit PassSpan(const char* name) : host(name), device(TraceLane::kDeviceCompute, name) {}
  TraceSpan host;
  DeviceSpan device;
};

}  // namespace

Tensor training_pass(const Task& task, Model& model, const Batch& batch, Pass& pass,
                     const PassSteps& steps) {
  Variable loss;
  pass.overwrites = steps.first;
  std::optional<PassSpan> span;
  // Shapes alone take no part in a timeline
  const bool timed = pass.backend.device() != DeviceType::kMeta;
  {
    if (timed) span.emplace("forward");
    // The outputs go at the end of this block: in the backward pass their memory may serve again.
    const TaskOutput output =
        named("task", task.name(), [&] { return task.predict(model, batch, pass); });
    if (!output.outputs.has_value() || !output.targets)
      fail(ExitCode::kUsage, "task", "predict() gives no outputs or no targets");
    if (steps.before_loss) steps.before_loss();
    const bool weighed = batch.find(LossShares::kTensor) != nullptr;
    loss = task.loss(output, weighed ? 1.0 : steps.share, pass);
    if (weighed) loss = LossShares::apply(batch, loss, pass);
  }
  span.reset();
  if (steps.before_backward) steps.before_backward(loss);
  if (timed) span.emplace("backward");
  const auto run = [&] { pass.tape->backward(loss, 1.0, !steps.first, steps.last); };
  if (steps.backward) {
    steps.backward(run);
  } else {
    run();
  }
  return loss.value();
}

ShapeTrace trace_shapes(const Task& task, Model& model, const PassShape& shape, bool allow_unused) {
  if (const auto error = model.unsupported(shape.activations(), DeviceType::kMeta))
    throw Error(*error);
  const auto meta = make_meta_backend();
  CountingBackend backend(*meta);
  ShapeTrace trace;
  std::string stopped_at;
  model.allocate(backend, shape.dtype, shape.compute);
  const std::size_t before = meta->memory_stats().in_use;
  {
    Tape tape(backend);
    tape.set_ready_observer([&](Parameter& parameter) { trace.ready_order.push_back(&parameter); });
    std::unordered_map<const Parameter*, Tensor> gradients;
    for (Parameter* parameter : model.parameters())
      gradients[parameter] = std::exchange(parameter->grad, Tensor());
    tape.set_gradient_memory([&](Parameter& parameter) {
      trace.begun.push_back({&parameter, trace.ready_order.size()});
      parameter.grad = std::move(gradients[&parameter]);
    });
    ShapeSums sums;
    Pass pass{.backend = backend,
              .tape = &tape,
              .training = true,
              .device = shape.device,
              .recompute = shape.recompute.value_or(Pass::usual_recompute(shape.device)),
              .extensions = {shape.synchronized_norms ? &sums : nullptr}};
    const Batch batch = empty_batch(task.tensors(), backend, shape.batch_size, shape.activations());
    training_pass(
        task, model, batch, pass, {.before_backward = [](const Variable& loss) {
          if (!loss.requires_grad())
            fail(ExitCode::kUsage, "model",
                 "no trainable parameter takes part in the loss, so there is nothing to train");
        }});
    stopped_at = tape.stopped_at();
  }
  trace.activation_bytes = meta->memory_stats().peak_in_use - before;
  trace.work = std::move(backend.work);
  if (const std::int64_t targets = task.targets_of_sample(); targets > 0) {
    // A forward pass without a tape: with one, the loss of a language model makes gradients too.
    CountingBackend count(*meta);
    Pass pass{.backend = count, .training = true};
    const Batch batch = empty_batch(task.tensors(), count, shape.batch_size, shape.activations());
    task.loss(task.predict(model, batch, pass), 1.0, pass);
    double flops = 0.0;
    for (const OperationWork& work : count.work) flops += work.flops;
    trace.target_flops = 3.0 * flops / static_cast<double>(shape.batch_size * targets);
  }
  for (Parameter* parameter : model.parameters()) {
    if (parameter->trainable &&
        std::ranges::find(trace.ready_order, parameter) == trace.ready_order.end()) {
      trace.unused.push_back(parameter);
    }
  }
  model.drop_memory();
  if (!trace.unused.empty() && !allow_unused) {
    fail(ExitCode::kUsage, "model",
         "parameter {}{} gets no gradient{}; remove it, or set \"unused_parameters\": \"allow\"",
         trace.unused.front()->name,
         trace.unused.size() > 1 ? fmt::format(" (and {} more)", trace.unused.size() - 1) : "",
         stopped_at.empty() ? "" : ", and layer " + stopped_at + " hands none on to its input");
  }
  return trace;
}

}  // namespace starling
