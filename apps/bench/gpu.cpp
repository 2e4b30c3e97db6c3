#include "apps/bench/benches.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "apps/bench/support.h"
#include "apps/trainer/device/device.h"
#include "apps/trainer/report/floor.h"
#include "comm/algorithm.h"
#include "comm/bucket.h"
#include "comm/scheduler.h"
#include "core/console.h"
#include "core/error.h"
#include "core/forwarding_backend.h"
#include "core/operations/pointwise.h"
#include "core/operations/updates.h"
#include "core/random.h"
#include "kernels/open_backend.h"
#include "kernels/optimizer.h"
#include "layers/layer.h"

namespace starling {

namespace {

constexpr double kLossScale = 1024.0;  // for fp16, as a run would have found it
constexpr int kProfiledSteps = 5;

/// A GPU's backend with a clock: with `profiling`, the host waits for each operation and notes its
/// time.
class GpuProfile final : public ForwardingBackend {
 public:
  explicit GpuProfile(Backend& gpu) : ForwardingBackend(gpu) {}
  std::map<std::string, double> seconds;
  bool profiling = false;

 protected:
  void around(std::string_view name, const std::function<void()>& operation) override {
    if (!profiling) return operation();
    inner().synchronize();
    seconds[std::string(name)] += seconds_of([&] {
      operation();
      inner().synchronize();
    });
  }
};

std::unique_ptr<Backend> open_gpu(const GpuStepBench& settings) {
  BackendSettings backend;
  backend.tf32 = settings.tf32;
  backend.benchmark = settings.cudnn_benchmark;
  return open_backend(DeviceType::kCuda, backend);
}

Tensor random_images(Backend& backend, const Shape& shape, DType dtype) {
  std::vector<double> numbers(static_cast<std::size_t>(shape.elements()));
  fill_random(Init::normal(1.0), 7, 0, shape.elements(), numbers.data());
  const std::vector<float> pixels(numbers.begin(), numbers.end());
  Tensor images(backend, shape, DType::kFloat32);
  backend.copy_from_host(pixels.data(), images);
  if (dtype == DType::kFloat32) return images;
  Tensor low(backend, shape, dtype);
  backend.cast({.x = images, .y = low});
  return low;
}

Tensor labels_of(Backend& backend, std::int64_t batch, std::int64_t classes) {
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(batch));
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % classes);
  Tensor labels(backend, Shape{batch}, DType::kInt32);
  backend.copy_from_host(numbers.data(), labels);
  return labels;
}

}  // namespace

int bench_gpu_step(const GpuStepBench& settings) {
  const std::unique_ptr<Backend> device = open_gpu(settings);
  GpuProfile backend(*device);
  const DType compute = expected_compute(settings.precision, "cuda");
  if (compute == DType::kFloat64)
    fail(ExitCode::kUsage, "bench", "precision: is fp64, allowed: fp32, bf16, fp16");
  const std::unique_ptr<Model> model =
      bench_model(settings.model, settings.stem, settings.image, settings.classes);
  const std::unique_ptr<OptimizerRule> rule = bench_rule(settings.optimizer);

  const std::unique_ptr<Task> task = bench_task(settings.image, settings.classes);
  const PassShape shape{settings.batch, DType::kFloat32, compute};
  const ShapeTrace trace = trace_shapes(*task, *model, shape);
  std::vector<OperationWork> work = count_pass(*task, *model, shape);
  work.push_back(count_update(*rule, static_cast<double>(model->parameter_count()), 0.0,
                              DType::kFloat32, compute));
  std::vector<LayerExtent> extents;
  for (const Parameter* parameter : model->parameters()) {
    if (parameter->trainable) extents.push_back(layer_of(*parameter));
  }
  const std::vector<OperationWork> matrices =
      count_matrices(*rule, extents, DType::kFloat32, work.back());
  work.insert(work.end(), matrices.begin(), matrices.end());
  const BucketPlan plan = plan_buckets(trace.ready_order, {}, DType::kFloat32, 25.0 * 1024 * 1024);
  std::vector<Bucket> buckets = make_buckets(plan, backend, DType::kFloat32, *rule, false, compute);
  model->allocate_buffers(backend, DType::kFloat32);
  model->initialise(1);
  refresh_low(backend, buckets);
  const std::unique_ptr<Transport> transport = make_single_transport();
  const std::unique_ptr<Mixer> mixer = transport->make_mixer(backend);
  const std::unique_ptr<Topology> topology = bench_topology({}, 1);
  const bool scaled = compute == DType::kFloat16;
  const std::unique_ptr<Algorithm> algorithm =
      make_algorithm(algorithm_of({}), {.backend = backend,
                                        .transport = *transport,
                                        .mixer = *mixer,
                                        .rule = *rule,
                                        .buckets = buckets,
                                        .topology = topology.get(),
                                        .in_backward = !scaled,
                                        .check_overflow = scaled});
  BucketScheduler scheduler(plan, buckets, *algorithm, false);
  Tape tape(backend);
  if (settings.plain) {
    if (scaled)
      fail(ExitCode::kUsage, "bench",
           "plain: is for fp32 and bf16; fp16 looks for an overflow between the pass and the "
           "updates");
  } else {
    tape.set_ready_observer([&](Parameter& parameter) { scheduler.ready(parameter); });
  }
  std::vector<UpdateLayers> layers;
  for (const Bucket& bucket : buckets) {
    if (rule->facts().measures_layers) layers.push_back(update_layers(backend, *rule, bucket));
  }
  const auto update_all = [&](std::int64_t number) {
    for (Bucket& bucket : buckets) {
      UpdateArgs args;
      args.x = bucket.parameters;
      args.x_out = bucket.parameters;
      args.gradient = bucket.gradients;
      args.decay = bucket.decay;
      args.states = bucket.states;
      args.low = bucket.low;
      if (rule->facts().measures_layers)
        args.layers = layers[static_cast<std::size_t>(&bucket - buckets.data())];
      args.lr = 1e-3;
      args.step = number;
      run_update(backend, *rule, args);
    }
  };

  const Batch batch{
      {{"image", random_images(backend, model->input_shape().with_batch(settings.batch), compute)},
       {"label", labels_of(backend, settings.batch, settings.classes)}},
      settings.batch,
      compute};
  std::int64_t done = 0;
  float last_loss = 0.0f;
  const auto step = [&](bool read_loss) {
    const double scale = scaled ? kLossScale : 1.0;
    if (!settings.plain)
      scheduler.begin_step(
          {.step = done, .optimizer_step = done + 1, .loss_scale = scale, .lr = 1e-3});
    Pass pass{.backend = backend,
              .tape = &tape,
              .training = true,
              .dropout_key = 1,
              .dropout_counter = static_cast<std::uint64_t>(done) << 24,
              .loss_scale = scale};
    const Tensor loss = training_pass(*task, *model, batch, pass);
    if (settings.plain) {
      update_all(done + 1);
    } else {
      scheduler.end_backward();
    }
    if (read_loss) backend.copy_to_host(loss, &last_loss);
    ++done;
  };

  constexpr int kWarmUp = 5, kWindow = 5;
  for (int i = 0; i < kWarmUp; ++i) step(false);
  backend.synchronize();
  const std::uint64_t allocations = backend.memory_stats().system_allocations;
  std::vector<double> seconds;
  for (std::int64_t i = 0; i < std::max<std::int64_t>(1, settings.steps / kWindow); ++i) {
    seconds.push_back(seconds_of([&] {
                        for (int k = 0; k < kWindow; ++k) step(false);
                        backend.synchronize();
                      }) /
                      kWindow);
  }
  const std::uint64_t steady = backend.memory_stats().system_allocations - allocations;
  const MemoryStats memory = backend.memory_stats();
  backend.profiling = true;
  for (int i = 0; i < kProfiledSteps; ++i) step(i + 1 == kProfiledSteps);
  if (!std::isfinite(last_loss))
    fail(ExitCode::kDiverged, "bench", "the loss became {} within {} steps", last_loss, done);

  const double step_s = median(seconds);
  const std::optional<Ceilings> known = known_ceilings(device->description());
  const Ceilings ceilings = known ? *known : measured_ceilings(*device, compute);
  const double flops = ceilings.flops(compute, settings.tf32);
  const double floor_s = floor_of(work, flops, ceilings.bytes_per_second).seconds;
  const double images_per_second = static_cast<double>(settings.batch) / step_s;
  if (settings.json) {
    nlohmann::json result{{"model", settings.model},
                          {"precision", name_of(compute)},
                          {"batch", settings.batch},
                          {"device", device->description()},
                          {"step_ms", 1e3 * step_s},
                          {"images_per_second", images_per_second},
                          {"floor_ms", 1e3 * floor_s},
                          {"ceilings",
                           {{"of", ceilings.device},
                            {"bytes_per_second", ceilings.bytes_per_second},
                            {"flops_per_second", flops}}},
                          {"peak_bytes", memory.peak_in_use},
                          {"reserved_bytes", memory.reserved},
                          {"steady_state_allocations", steady},
                          {"loss", last_loss}};
    for (const auto& [name, time] : backend.seconds)
      result["operations_ms"][name] = 1e3 * time / kProfiledSteps;
    answer("{}\n", result.dump());
    return 0;
  }
  answer("{}, batch {}, {}, {}, on {}\n", settings.model, settings.batch, name_of(compute),
         settings.optimizer, device->description());
  answer(
      "step {:.2f} ms, {:.0f} images/s; floor {:.2f} ms as issued ({:.2f} of it reached) at {:.2f} "
      "TB/s and {:.0f} TFLOP/s, {}\n",
      1e3 * step_s, images_per_second, 1e3 * floor_s, floor_s / step_s,
      1e-12 * ceilings.bytes_per_second, 1e-12 * flops,
      known ? fmt::format("an {}'s", known->device) : "measured here");
  answer(
      "memory: {:.0f} MiB at the peak, {:.0f} MiB from the driver, {} allocations in steady state; "
      "loss {:.4f}\n",
      static_cast<double>(memory.peak_in_use) / 1048576.0,
      static_cast<double>(memory.reserved) / 1048576.0, steady, last_loss);
  for (const auto& [name, time] : backend.seconds)
    answer("  {:<26} {:8.3f} ms\n", name, 1e3 * time / kProfiledSteps);
  return 0;
}

int bench_gpu_update(std::int64_t parameters, int repeats, bool json) {
  const std::int64_t n = (parameters + kDecayBlock - 1) / kDecayBlock * kDecayBlock;
  const std::unique_ptr<Backend> backend = open_gpu({});
  const auto filled = [&](std::int64_t elements, double value) {
    Tensor tensor(*backend, Shape{elements}, DType::kFloat32);
    backend->fill(tensor, value);
    return tensor;
  };
  UpdateArgs base;
  base.x = base.x_out = filled(n, 0.5);
  base.gradient = filled(n, 1e-3);
  base.decay = Tensor(*backend, Shape{n / kDecayBlock}, DType::kUInt8);
  const std::vector<std::uint8_t> entries(static_cast<std::size_t>(n / kDecayBlock), kDecays);
  backend->copy_from_host(entries.data(), base.decay);
  base.received = {filled(n, 0.25)};
  base.weights = {0.5};
  base.self_weight = 0.5;
  base.lr = 1e-4;
  std::vector<Tensor> states;
  for (int k = 0; k < 3; ++k) states.push_back(filled(n, 0.0));
  const Tensor from = filled(4 * n, 1.0), to = filled(4 * n, 0.0);

  constexpr int kCalls = 12;       // a whole number of AccumAdamW's groups
  constexpr double kBytes = 32.0;  // a parameter: what the copy moves, and each of the updates
  struct Subject {
    std::string name;
    std::function<void(int i)> call;
    std::vector<double> seconds;
  };
  std::vector<Subject> subjects;
  subjects.push_back({"copy", [&](int) { backend->copy(from, to); }, {}});
  std::vector<std::unique_ptr<OptimizerRule>> rules;
  const auto add = [&](const std::string& type, const nlohmann::json& config) {
    ConfigSection section(config, "bench");
    rules.push_back(optimizers().make(type, "optimizer.type", section));
    const OptimizerRule* rule = rules.back().get();
    UpdateArgs args = base;
    args.states.assign(states.begin(),
                       states.begin() + static_cast<std::ptrdiff_t>(rule->facts().states.size()));
    subjects.push_back({type,
                        [&, rule, args](int i) mutable {
                          args.step = i;
                          backend->update({*rule, args});
                        },
                        {}});
  };
  add("adamw", nlohmann::json::object());
  add("accum_adamw", {{"accum_iter", 4}});
  for (int repeat = -2; repeat < repeats; ++repeat) {  // two rounds warm up
    for (Subject& subject : subjects) {
      backend->synchronize();
      const double seconds = seconds_of([&] {
        for (int i = 1; i <= kCalls; ++i) subject.call(i);
        backend->synchronize();
      });
      if (repeat >= 0) subject.seconds.push_back(seconds / kCalls);
    }
  }

  const double copy_seconds = median(subjects.front().seconds);
  nlohmann::json rows = nlohmann::json::array();
  if (!json)
    answer("{}\n{} fp32 parameters, one neighbour mixed in; median of {}\n", backend->description(),
           n, repeats);
  for (const Subject& subject : subjects) {
    const double seconds = median(subject.seconds),
                 rate = 1e-9 * kBytes * static_cast<double>(n) / seconds,
                 ratio = copy_seconds / seconds;
    rows.push_back({{"name", subject.name},
                    {"bytes_per_parameter", kBytes},
                    {"ms", 1e3 * seconds},
                    {"gb_per_s", rate},
                    {"ratio_to_copy", ratio}});
    if (!json)
      answer("  {:<12} {:2.0f} B {:8.4f} ms  {:8.1f} GB/s  {:5.3f} of the copy\n", subject.name,
             kBytes, 1e3 * seconds, rate, ratio);
  }
  if (json)
    answer("{}\n",
           nlohmann::json{{"device", backend->description()}, {"parameters", n}, {"results", rows}}
               .dump());
  return 0;
}

}  // namespace starling
