#include "apps/training/tasks/norm_statistics.h"

#include <algorithm>

#include "core/stop_signals.h"
#include "core/trace.h"
#include "layers/norm_statistics.h"

namespace starling {

bool is_norm_statistic(const std::string& buffer) {
  return buffer.ends_with("running_mean") || buffer.ends_with("running_var");
}

namespace {

/// Whether a batch norm's statistics stay, as its parameters do; `buffer`: "bn1.running_mean".
bool is_frozen_statistic(const Model& model, const std::string& buffer) {
  const std::string norm = buffer.substr(0, buffer.rfind('.') + 1);
  const auto& parameters = model.parameters();
  return std::ranges::none_of(parameters, [&](const Parameter* parameter) {
    return parameter->trainable &&
           (parameter->name == norm + "weight" || parameter->name == norm + "bias");
  });
}

}  // namespace

void recalibrate(const Task& task, Model& model, Loader& loader, std::int64_t batches,
                 std::uint64_t seed, Backend& backend) {
  const TraceSpan span("recalibrate");
  for (ModelBuffer* buffer : model.buffers()) {
    const Tensor fresh(backend, buffer->value.shape(), buffer->value.dtype());
    backend.copy(buffer->value, fresh);
    // The first batch takes the whole place of what was there; but a NaN would stay.
    if ((is_norm_statistic(buffer->name) || buffer->name.ends_with("num_batches_tracked")) &&
        !is_frozen_statistic(model, buffer->name))
      backend.fill(fresh, 0.0);
    buffer->value = fresh;
  }
  // Keeps these numbers apart from those of training's dropout.
  constexpr std::uint64_t kApart = std::uint64_t{1} << 63;
  // After a stop the test that follows is given up.
  for (std::int64_t batch = 0; batch < batches && !stop_requested(); ++batch) {
    NormMomentum momentum(1.0 / static_cast<double>(batch + 1));
    Pass pass{.backend = backend,
              .training = true,
              .dropout_key = seed,
              .dropout_counter = kApart | static_cast<std::uint64_t>(batch) << 24,
              .extensions = {&momentum}};
    (void)task.predict(model, loader.next(), pass);
  }
}

}  // namespace starling
