#include "apps/trainer/shape_trace.h"

#include <algorithm>
#include <set>

#include "core/autograd.h"
#include "core/error.h"
#include "layers/functions.h"

namespace starling {

ShapeTrace trace_shapes(Model& model, std::int64_t batch_size, DType dtype, bool allow_unused, DType compute, bool defer_norms) {
  const auto meta = make_meta_backend();
  ShapeTrace trace;
  model.allocate(*meta, dtype, compute);
  const std::size_t before = meta->memory_stats().in_use;
  {
    Tape tape(*meta);
    tape.set_ready_observer([&](Parameter& parameter) { trace.ready_order.push_back(&parameter); });
    Pass pass{.backend = *meta, .tape = &tape, .training = true, .defer_norms = defer_norms};
    Tensor images(*meta, model.input_shape().with_batch(batch_size), is_low_precision(compute) ? compute : dtype);
    const Tensor labels(*meta, Shape{batch_size}, DType::kInt32);
    Variable input(std::move(images));
    Variable loss;
    {
      const Variable logits = model.forward(input, pass);
      loss = functions::cross_entropy(logits, labels, 0.0, 1.0, pass);
    }
    if (!loss.requires_grad())
      fail(ExitCode::kUsage, "model", "no trainable parameter takes part in the loss, so there is nothing to train");
    tape.backward(loss);
  }
  trace.activation_bytes = meta->memory_stats().peak_in_use - before;
  for (Parameter* parameter : model.parameters()) {
    if (parameter->trainable && std::find(trace.ready_order.begin(), trace.ready_order.end(), parameter) == trace.ready_order.end()) {
      trace.unused.push_back(parameter);
    }
  }
  model.drop_memory();
  if (!trace.unused.empty() && !allow_unused) {
    fail(ExitCode::kUsage, "model", "parameter {}{} gets no gradient; remove it, or set \"unused_parameters\": \"allow\"",
         trace.unused.front()->name, trace.unused.size() > 1 ? fmt::format(" (and {} more)", trace.unused.size() - 1) : "");
  }
  return trace;
}

}  // namespace starling
