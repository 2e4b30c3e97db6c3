#include "apps/bench/benches.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <fmt/ranges.h>
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/training/config/train_config.h"
#include "apps/training/estimates/floor.h"
#include "apps/training/estimates/memory.h"
#include "core/console.h"

namespace starling {

namespace {

struct FloorBench {
  /// A config's path; empty: the models that docs/gpu.md sets goals for
  std::string config;
  std::vector<std::string> settings;     ///< as starling-train --set
  std::int64_t batch = 0;                ///< 0: the config's
  std::string precision;                 ///< empty: the config's
  std::string on = "H200";               ///< a name in kCeilings
  double bandwidth = 0.0, tflops = 0.0;  ///< TB/s and TFLOP/s; 0: those of `on`
  int ranks = 1;
  bool json = false;
};

/// One step of a config: the work of each operation, and the memory.
struct StepFloor {
  std::vector<OperationWork> work;
  MemoryNeed memory;
  double units = 0.0, flops_per_second = 0.0, bytes_per_second = 0.0;
  const char* unit = "image";  ///< or "token" for language models
  DType compute = DType::kFloat32;

  Floor floor() const { return floor_of(work, flops_per_second, bytes_per_second); }
};

Ceilings ceilings_of(const FloorBench& settings) {
  Ceilings device = known_ceilings(settings.on).value();
  if (settings.bandwidth > 0.0) device.bytes_per_second = 1e12 * settings.bandwidth;
  return device;
}

std::string whose_ceilings(const FloorBench& settings) {
  return fmt::format("{}of one {}",
                     settings.bandwidth > 0.0 || settings.tflops > 0.0 ? "as given, else " : "",
                     settings.on);
}

StepFloor step_floor(const nlohmann::json& given, const std::string& source,
                     const FloorBench& settings) {
  const RankLayout site{settings.ranks, settings.ranks};
  TrainConfig config = read_train_config(given, source, site);
  const ShapeTrace trace = trace_shapes(config);
  StepFloor step;
  step.compute = config.device.compute;
  step.memory = memory_need(config, site, trace);
  // One neighbour is mixed in, as with pair exchanges.
  const double received =
      config.sync.topology && site.ranks > 1 ? step.memory.receive / step.memory.parameters : 0.0;
  const double parameters =
      step.memory.parameters / static_cast<double>(size_of(config.device.dtype));
  const Ceilings device = ceilings_of(settings);
  step.work = count_step(config, trace.work, parameters, received, device);
  for (OperationWork& operation : step.work) {
    // use the given peak rate
    if (settings.tflops > 0.0 && config.device.compute == config.device.dtype)
      operation.flops_per_second = 0.0;
  }
  step.units = static_cast<double>(config.length.batch_size * config.length.accumulate);
  if (const std::int64_t tokens = config.task->targets_of_sample(); tokens > 0) {
    step.units *= static_cast<double>(tokens);
    step.unit = "token";
  }
  step.flops_per_second = settings.tflops > 0.0
                              ? 1e12 * settings.tflops
                              : device.flops(config.device.compute, config.device.tf32);
  step.bytes_per_second = device.bytes_per_second;
  return step;
}

nlohmann::json floor_json(const Floor& floor, const StepFloor& step) {
  return {{"bytes", floor.bytes},
          {"flops", floor.flops},
          {fmt::format("mb_per_{}", step.unit), 1e-6 * floor.bytes / step.units},
          {"memory_ms", 1e3 * floor.memory_seconds},
          {"arithmetic_ms", 1e3 * floor.arithmetic_seconds},
          {"ms", 1e3 * floor.seconds},
          {fmt::format("{}s_per_second", step.unit), step.units / floor.seconds},
          {"bound_by", floor.memory_bound() ? "memory" : "arithmetic"}};
}

/// Grouped by kind of operation, the slowest first.
std::vector<std::pair<std::string, std::vector<OperationWork>>> by_kind(const StepFloor& step) {
  std::map<std::string, std::vector<OperationWork>> kinds;
  for (const OperationWork& operation : step.work) kinds[operation.name].push_back(operation);
  std::vector<std::pair<std::string, std::vector<OperationWork>>> sorted(kinds.begin(),
                                                                         kinds.end());
  const auto seconds = [&](const auto& kind) {
    return floor_of(kind.second, step.flops_per_second, step.bytes_per_second).seconds;
  };
  std::ranges::stable_sort(sorted,
                           [&](const auto& a, const auto& b) { return seconds(a) > seconds(b); });
  return sorted;
}

void print_line(const std::string& name, std::size_t calls, const Floor& floor, double units) {
  answer("  {:<26} {:5}  {:10.2f}  {:11.2f}  {:8.3f}  {:8.3f}  {:8.3f}  {}\n", name, calls,
         1e-6 * floor.bytes / units, 1e-9 * floor.flops / units, 1e3 * floor.memory_seconds,
         1e3 * floor.arithmetic_seconds, 1e3 * floor.seconds,
         floor.memory_bound() ? "memory" : "arithmetic");
}

int config_floor(const FloorBench& settings) {
  nlohmann::json config = read_json_file(settings.config);
  apply_settings(config, settings.settings);
  config["device"] = "cuda";
  if (settings.batch > 0) config["batch_size"] = settings.batch;
  if (!settings.precision.empty()) config["precision"] = settings.precision;
  const StepFloor step = step_floor(config, settings.config, settings);
  const Floor issued = step.floor();
  if (settings.json) {
    nlohmann::json result{{"config", settings.config},
                          {"device", settings.on},
                          {"precision", name_of(step.compute)},
                          {fmt::format("{}s", step.unit), step.units},
                          {"bytes_per_second", step.bytes_per_second},
                          {"flops_per_second", step.flops_per_second},
                          {"memory_bytes", step.memory.total()},
                          {"issued", floor_json(issued, step)}};
    for (const auto& [name, work] : by_kind(step)) {
      result["operations"][name] =
          floor_json(floor_of(work, step.flops_per_second, step.bytes_per_second), step);
      result["operations"][name]["calls"] = work.size();
    }
    answer("{}\n", result.dump());
    return 0;
  }
  answer("{}, {} {}s a step, {}; ceilings {}: {:.2f} TB/s, {:.0f} TFLOP/s; memory {}\n",
         settings.config, step.units, step.unit, name_of(step.compute), whose_ceilings(settings),
         1e-12 * step.bytes_per_second, 1e-12 * step.flops_per_second,
         size_text(step.memory.total()));
  answer("  {:<26} {:>5}  {:>10}  {:>11}  {:>8}  {:>8}  {:>8}  bound by\n", "operation", "calls",
         fmt::format("MB/{}", step.unit), fmt::format("GFLOP/{}", step.unit), "bytes ms",
         "arith ms", "floor ms");
  for (const auto& [name, work] : by_kind(step)) {
    print_line(name, work.size(), floor_of(work, step.flops_per_second, step.bytes_per_second),
               step.units);
  }
  print_line("all", step.work.size(), issued, step.units);
  answer("floor: {:.0f} {}s/s\n", step.units / issued.seconds, step.unit);
  return 0;
}

nlohmann::json image_config(const std::string& model, std::int64_t size, std::int64_t classes,
                            std::int64_t batch, const std::string& precision) {
  nlohmann::json config{
      {"model", {{"type", model}, {"num_classes", classes}}},
      {"data",
       {{"type", "synthetic"}, {"image_size", size}, {"classes", classes}, {"limit", 1 << 20}}},
      {"batch_size", batch},
      {"epochs", 1},
      {"optimizer", {{"type", "adamw"}}},
      {"sync", {{"topology", {{"type", "ring"}}}}},
      {"device", "cuda"},
      {"precision", precision}};
  if (model == "resnet18") config["model"]["stem"] = "cifar";
  return config;
}

nlohmann::json text_config() {
  return {
      {"model", {{"type", "gpt2"}}},
      {"data", {{"type", "tokens"}, {"path", "none"}, {"vocab", 50257}, {"sequence_length", 1024}}},
      {"batch_size", 32},
      {"steps", 1},
      {"optimizer", {{"type", "adamw"}}},
      {"device", "cuda"},
      {"precision", "bf16"}};
}

/// The models that docs/checks.md sets goals for.
int goal_floors(const FloorBench& settings) {
  const Ceilings device = ceilings_of(settings);
  nlohmann::json rows = nlohmann::json::array();
  const auto row = [&](const std::string& name, const Floor& floor, const StepFloor* step) {
    rows.push_back({{"row", name},
                    {"ms", 1e3 * floor.seconds},
                    {"bytes", floor.bytes},
                    {"flops", floor.flops}});
    if (!step) return;
    rows.back().update(floor_json(floor, *step));
    rows.back()["memory_bytes"] = step->memory.total();
    rows.back()["unit"] = step->unit;
  };
  constexpr double kParameters = 25.6e6;
  constexpr double kBytes = 32.0;  // per parameter
  for (const char* rule : {"adamw", "accum_adamw"}) {
    row(fmt::format("fused update with mixing, {}, 25.6 M parameters, fp32, {:.0f} B each", rule,
                    kBytes),
        floor_of({{"update", kParameters * kBytes, 0.0}}, device.fp32_flops,
                 device.bytes_per_second),
        nullptr);
  }
  const std::pair<const char*, nlohmann::json> cases[] = {
      {"ResNet-50, batch 256, 224², bf16", image_config("resnet50", 224, 1000, 256, "bf16")},
      {"ResNet-50, batch 256, 224², fp16", image_config("resnet50", 224, 1000, 256, "fp16")},
      {"CIFAR ResNet-18, batch 512, bf16", image_config("resnet18", 32, 10, 512, "bf16")},
      {"GPT-2 124M, 32 × 1024 tokens, bf16", text_config()}};
  for (const auto& [name, config] : cases) {
    const StepFloor step = step_floor(config, name, settings);
    row(name, step.floor(), &step);
  }
  if (settings.json) {
    answer("{}\n", rows.dump());
    return 0;
  }
  answer("Floors at {:.2f} TB/s and {:.0f} TFLOP/s (bf16, fp16), {}, from shapes alone\n",
         1e-12 * device.bytes_per_second,
         settings.tflops > 0.0 ? settings.tflops : 1e-12 * device.low_flops,
         whose_ceilings(settings));
  for (const nlohmann::json& one : rows) {
    std::string line =
        fmt::format("  {:<72} {:8.3f} ms", one["row"].get<std::string>(), one["ms"].get<double>());
    if (one.contains("unit")) {
      const std::string unit = one["unit"];
      line += fmt::format("  {:8.0f} {}s/s  {:6.1f} MB each  bound by {}  memory {}",
                          one[unit + "s_per_second"].get<double>(), unit,
                          one["mb_per_" + unit].get<double>(), one["bound_by"].get<std::string>(),
                          size_text(one["memory_bytes"].get<double>()));
    }
    answer("{}\n", line);
  }
  return 0;
}

int bench_floor(const FloorBench& settings) {
  return settings.config.empty() ? goal_floors(settings) : config_floor(settings);
}

}  // namespace

Command add_floor_bench(CLI::App& app) {
  const auto given = std::make_shared<FloorBench>();
  FloorBench& settings = *given;
  const CLI::Validator of_known_gpu(
      [](const std::string& name) {
        if (known_ceilings(name)) return std::string();
        std::vector<std::string_view> known;
        for (const Ceilings& one : kCeilings) known.push_back(one.device);
        return fmt::format(
            "the ceilings of {} are not known; known: {}; others are given by --bandwidth and "
            "--flops",
            name, fmt::join(known, ", "));
      },
      "");
  CLI::App* command = app.add_subcommand(
      "floor", "the least time of a training step on a GPU, from shapes alone; also --floor");
  command->add_flag("--json", settings.json, "one JSON object");
  command->add_option("config", settings.config,
                      "a config; without one, the rows that docs/checks.md has goals for");
  add_list(*command, "--set", settings.settings,
           "KEY=VALUE changes the config, as in starling-train");
  command->add_option("--batch", settings.batch, "samples of a micro-batch instead of the config's")
      ->check(whole_in(1, 1 << 24));
  command->add_option("--precision", settings.precision,
                      "fp32, bf16, fp16 instead of the config's");
  command
      ->add_option("--on", settings.on,
                   "the GPU whose ceilings are taken, by a word or all of its name; none is asked")
      ->capture_default_str()
      ->check(of_known_gpu);
  command
      ->add_option("--bandwidth", settings.bandwidth,
                   "TB/s of a copy, read and written, instead of that GPU's")
      ->check(number_in(1e-6, 1e6));
  command
      ->add_option("--flops", settings.tflops, "TFLOP/s of a matrix product instead of that GPU's")
      ->check(number_in(1e-6, 1e6));
  add_number(*command, "--ranks", settings.ranks, "ranks that train together", 1, 1 << 20);
  return {command, [given] { return bench_floor(*given); }};
}

}  // namespace starling
