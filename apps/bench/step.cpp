#include "apps/bench/benches.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/bench/conv_bound.h"
#include "apps/bench/support.h"
#include "apps/bench/training.h"
#include "apps/training/device/device.h"
#include "core/console.h"
#include "core/host.h"
#include "core/operations/convolutions.h"
#include "kernels/open_backend.h"

namespace starling {

namespace {

/// Also records the convolutions' shapes.
class ConvolutionProfile final : public ProfilingBackend {
 public:
  using ProfilingBackend::ProfilingBackend;
  void issue(const Conv2dForward& args) override {
    if (recording)
      convolutions.push_back(
          {args.x.shape(), args.weight.shape(), args.y.shape(), args.window, false});
    ProfilingBackend::issue(args);
  }
  void issue(const Conv2dBackwardData& args) override {
    if (recording) {
      for (ConvShape& shape : convolutions)
        shape.backward_data |= shape.x == args.dx.shape() && shape.weight == args.weight.shape();
    }
    ProfilingBackend::issue(args);
  }
  std::vector<ConvShape> convolutions;
  bool recording = false;
};

}  // namespace

int bench_step(const StepBench& settings) {
  const std::unique_ptr<Backend> device = open_backend(DeviceType::kCpu, settings.threads);
  ConvolutionProfile backend(*device);
  const DType compute = expected_compute(settings.precision, "cpu");
  BenchTraining training(settings, backend, compute);
  const auto step = [&] { training.step(); };
  backend.recording = true;
  step();
  backend.recording = false;
  step();
  const std::uint64_t allocations = backend.memory_stats().system_allocations;
  // measured before the bound allocates memory
  const std::uint64_t peak = peak_resident_bytes();
  if (is_low_precision(compute)) backend.convolutions.clear();  // the bound is for fp32 only
  ConvBound bound(backend.convolutions);
  backend.profiling = true;
  std::vector<double> step_seconds, bound_seconds;
  for (std::int64_t i = 0; i < settings.steps; ++i) {
    step_seconds.push_back(seconds_of(step));
    bound_seconds.push_back(bound.run());
  }
  const std::uint64_t steady = backend.memory_stats().system_allocations - allocations;
  const double step_ms = 1e3 * median(step_seconds), bound_ms = 1e3 * median(bound_seconds);
  const char* unit = settings.tokens > 0 ? "token" : "image";
  const double per_second =
      1e3 * static_cast<double>(settings.batch * std::max<std::int64_t>(1, settings.tokens)) /
      step_ms;
  const double ratio = step_ms > 0 ? bound_ms / step_ms : 0.0;

  if (settings.json) {
    nlohmann::json result{{"model", settings.model},
                          {"precision", settings.precision},
                          {"batch", settings.batch},
                          {"threads", settings.threads},
                          {"device", device->description()},
                          {"step_ms", step_ms},
                          {fmt::format("{}s_per_second", unit), per_second},
                          {"conv_bound_ms", bound_ms},
                          {"ratio_to_bound", ratio},
                          {"steady_state_allocations", steady},
                          {"peak_memory_bytes", peak}};
    for (const auto& [name, seconds] : backend.seconds)
      result["operations_ms"][name] = 1e3 * seconds / static_cast<double>(settings.steps);
    answer("{}\n", result.dump());
    return 0;
  }
  answer("{}, {}, batch {}, {} thread{}, {}, on {}\n", settings.model, settings.precision,
         settings.batch, settings.threads, settings.threads == 1 ? "" : "s", settings.optimizer,
         device->description());
  answer(
      "step {:.2f} ms (median of {}), {:.1f} {}s/s, peak memory {:.0f} MiB, {} allocations "
      "from the system in steady state\n",
      step_ms, settings.steps, per_second, unit, static_cast<double>(peak) / 1048576.0, steady);
  if (bound_ms > 0.0)
    answer("convolutions alone {:.2f} ms: the step runs at {:.3f} of that bound\n", bound_ms,
           ratio);
  double total = 0.0;
  for (const auto& [name, seconds] : backend.seconds) {
    const double ms = 1e3 * seconds / static_cast<double>(settings.steps);
    total += ms;
    answer("  {:<26} {:8.3f} ms  {:5.1f} %\n", name, ms, 100.0 * ms / step_ms);
  }
  answer("  {:<26} {:8.3f} ms  {:5.1f} %\n", "everything else", step_ms - total,
         100.0 * (step_ms - total) / step_ms);
  return 0;
}

}  // namespace starling
