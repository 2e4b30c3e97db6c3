#include "apps/bench/benches.h"

#include <map>
#include <nlohmann/json.hpp>

#include "apps/bench/conv_bound.h"
#include "apps/bench/support.h"
#include "apps/trainer/device/device.h"
#include "comm/algorithm.h"
#include "comm/scheduler.h"
#include "core/console.h"
#include "core/forwarding_backend.h"
#include "core/host.h"
#include "core/operations/convolutions.h"
#include "core/operations/pointwise.h"
#include "core/random.h"
#include "kernels/open_backend.h"
#include "kernels/optimizer.h"
#include "layers/layer.h"

namespace starling {

namespace {

/// Notes each operation's time and the convolutions' shapes.
class ProfilingBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void issue(const Conv2dForward& args) override {
    if (recording)
      convolutions.push_back(
          {args.x.shape(), args.weight.shape(), args.y.shape(), args.window, false});
    ForwardingBackend::issue(args);
  }
  void issue(const Conv2dBackwardData& args) override {
    if (recording) {
      for (ConvShape& shape : convolutions)
        shape.backward_data |= shape.x == args.dx.shape() && shape.weight == args.weight.shape();
    }
    ForwardingBackend::issue(args);
  }
  std::map<std::string, double> seconds;
  std::vector<ConvShape> convolutions;
  bool recording = false;

 protected:
  void around(std::string_view name, const std::function<void()>& operation) override {
    seconds[std::string(name)] += seconds_of(operation);
  }
};

}  // namespace

int bench_step(const StepBench& settings) {
  const std::unique_ptr<Backend> device = open_backend(DeviceType::kCpu, settings.threads);
  ProfilingBackend backend(*device);
  const DType compute = expected_compute(settings.precision, "cpu");
  const std::unique_ptr<Model> model =
      bench_model(settings.model, settings.stem, settings.image, settings.classes);
  const std::unique_ptr<OptimizerRule> rule = bench_rule(settings.optimizer);

  const std::unique_ptr<Task> task = bench_task(settings.image, settings.classes);
  const ShapeTrace trace = trace_shapes(*task, *model, {settings.batch, DType::kFloat32, compute});
  const BucketPlan plan = plan_buckets(trace.ready_order, {}, DType::kFloat32, 25.0 * 1024 * 1024);
  std::vector<Bucket> buckets = make_buckets(plan, backend, DType::kFloat32, *rule, false, compute);
  model->allocate_buffers(backend, DType::kFloat32);
  model->initialise(1);
  model->refresh_low();
  const std::unique_ptr<Transport> transport = make_single_transport();
  const std::unique_ptr<Mixer> mixer = transport->make_mixer(backend);
  const std::unique_ptr<Topology> topology = bench_topology({}, 1);
  const std::unique_ptr<Algorithm> algorithm =
      make_algorithm(algorithm_of({}), {.backend = backend,
                                        .transport = *transport,
                                        .mixer = *mixer,
                                        .rule = *rule,
                                        .buckets = buckets,
                                        .topology = topology.get()});
  BucketScheduler scheduler(plan, buckets, *algorithm, false);
  Tape tape(backend);
  tape.set_ready_observer([&](Parameter& parameter) { scheduler.ready(parameter); });

  const Tensor images(backend, model->input_shape().with_batch(settings.batch), DType::kFloat32);
  std::vector<double> pixels(static_cast<std::size_t>(images.elements()));
  fill_random(Init::normal(1.0), 7, 0, images.elements(), pixels.data());
  for (std::size_t i = 0; i < pixels.size(); ++i)
    images.data<float>()[i] = static_cast<float>(pixels[i]);
  Tensor input = images;
  if (is_low_precision(compute)) {
    input = Tensor(backend, images.shape(), compute);
    backend.cast({.x = images, .y = input});
  }
  const Tensor labels(backend, Shape{settings.batch}, DType::kInt32);
  for (std::int64_t i = 0; i < settings.batch; ++i)
    labels.data<std::int32_t>()[i] = static_cast<std::int32_t>(i % settings.classes);

  const Batch batch{{{"image", input}, {"label", labels}}, settings.batch, input.dtype()};
  std::int64_t done = 0;
  const auto step = [&] {
    scheduler.begin_step({.step = done, .optimizer_step = done + 1, .lr = 1e-3});
    Pass pass{.backend = backend,
              .tape = &tape,
              .training = true,
              .dropout_key = 1,
              .dropout_counter = static_cast<std::uint64_t>(done) << 24};
    training_pass(*task, *model, batch, pass);
    scheduler.end_backward();
    ++done;
  };

  backend.recording = true;
  step();
  backend.recording = false;
  step();
  const std::uint64_t allocations = backend.memory_stats().system_allocations;
  // before the bound takes memory of its own
  const std::uint64_t peak = peak_resident_bytes();
  if (is_low_precision(compute)) backend.convolutions.clear();  // the bound is one of fp32
  ConvBound bound(backend.convolutions);
  backend.seconds.clear();
  std::vector<double> step_seconds, bound_seconds;
  for (std::int64_t i = 0; i < settings.steps; ++i) {
    step_seconds.push_back(seconds_of(step));
    bound_seconds.push_back(bound.run());
  }
  const std::uint64_t steady = backend.memory_stats().system_allocations - allocations;
  const double step_ms = 1e3 * median(step_seconds), bound_ms = 1e3 * median(bound_seconds);
  const double images_per_second = 1e3 * static_cast<double>(settings.batch) / step_ms;
  const double ratio = step_ms > 0 ? bound_ms / step_ms : 0.0;

  if (settings.json) {
    nlohmann::json result{{"model", settings.model},
                          {"precision", settings.precision},
                          {"batch", settings.batch},
                          {"threads", settings.threads},
                          {"device", device->description()},
                          {"step_ms", step_ms},
                          {"images_per_second", images_per_second},
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
      "step {:.2f} ms (median of {}), {:.1f} images/s, peak memory {:.0f} MiB, {} allocations from "
      "the system in steady state\n",
      step_ms, settings.steps, images_per_second, static_cast<double>(peak) / 1048576.0, steady);
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
