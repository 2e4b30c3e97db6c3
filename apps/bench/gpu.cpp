#include "apps/bench/benches.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "apps/bench/support.h"
#include "apps/bench/training.h"
#include "apps/training/device/device.h"
#include "apps/training/estimates/floor.h"
#include "core/console.h"
#include "core/error.h"
#include "core/operations/updates.h"
#include "kernels/open_backend.h"
#include "kernels/optimizer.h"
#include "layers/layer.h"

namespace starling {

namespace {

constexpr int kProfiledSteps = 5;

std::unique_ptr<Backend> open_gpu(const StepBench& settings) {
  BackendSettings backend;
  backend.tf32 = settings.tf32;
  backend.benchmark = settings.cudnn_benchmark;
  return open_backend(DeviceType::kCuda, backend);
}

}  // namespace

int bench_gpu_step(const StepBench& settings) {
  const std::unique_ptr<Backend> device = open_gpu(settings);
  ProfilingBackend backend(*device);
  const DType compute = expected_compute(settings.precision, "cuda");
  // A model on shapes only, to count the work.
  const std::unique_ptr<Model> model = bench_model(settings);
  std::vector<OperationWork> work =
      trace_shapes(*bench_task(settings), *model, {settings.batch, DType::kFloat32, compute}).work;
  BenchTraining training(settings, backend, compute);
  work.push_back(count_update(training.rule(), static_cast<double>(model->parameter_count()), 0.0,
                              DType::kFloat32, compute));
  std::vector<LayerExtent> extents;
  for (const Parameter* parameter : model->parameters()) {
    if (parameter->trainable) extents.push_back(layer_of(*parameter));
  }
  const std::vector<OperationWork> matrices =
      count_matrices(training.rule(), extents, DType::kFloat32, work.back());
  work.insert(work.end(), matrices.begin(), matrices.end());

  constexpr int kWarmUp = 5, kWindow = 5;
  for (int i = 0; i < kWarmUp; ++i) training.step();
  backend.synchronize();
  const std::uint64_t allocations = backend.memory_stats().system_allocations;
  std::vector<double> seconds;
  for (std::int64_t i = 0; i < std::max<std::int64_t>(1, settings.steps / kWindow); ++i) {
    seconds.push_back(seconds_of([&] {
                        for (int k = 0; k < kWindow; ++k) training.step();
                        backend.synchronize();
                      }) /
                      kWindow);
  }
  const std::uint64_t steady = backend.memory_stats().system_allocations - allocations;
  const MemoryStats memory = backend.memory_stats();
  backend.profiling = true;
  float last_loss = 0.0f;
  for (int i = 0; i < kProfiledSteps; ++i) {
    const Tensor loss = training.step();
    if (i + 1 == kProfiledSteps) backend.copy_to_host(loss, &last_loss);
  }
  if (!std::isfinite(last_loss))
    fail(ExitCode::kDiverged, "bench", "the loss became {} within {} steps", last_loss,
         training.steps_done());

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

  constexpr int kCalls = 12;       // a multiple of AccumAdamW's group
  constexpr double kBytes = 32.0;  // per parameter, moved by the copy and by each update
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
  for (int repeat = -2; repeat < repeats; ++repeat) {  // two rounds of warm-up
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
