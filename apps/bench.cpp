#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "apps/bench/kernels.h"
#include "apps/bench/step.h"
#include "apps/bench/update.h"
#include "apps/trainer/agreement.h"
#include "apps/trainer/plugins.h"

int main(int argc, char** argv) {
  using namespace starling;
  CLI::App app{"Measures parts of Starling against a limit of the same run."};
  app.name("starling-bench");
  app.require_subcommand(1);
  bool json = false;
  int threads = 1;

  StepBench step_settings;
  CLI::App* step = app.add_subcommand("step", "whole training steps of a model on one rank, against its convolutions alone");
  step->add_option("--model", step_settings.model, "resnet20 … resnet110, resnet18 … resnet152, mlp")->capture_default_str();
  step->add_option("--stem", step_settings.stem, "cifar or imagenet, for resnet18 … resnet152");
  step->add_option("--batch", step_settings.batch, "samples of a step")->capture_default_str()->check(CLI::Range(1, 1 << 20));
  step->add_option("--image", step_settings.image, "image size in pixels")->capture_default_str()->check(CLI::Range(1, 4096));
  step->add_option("--classes", step_settings.classes, "outputs")->capture_default_str()->check(CLI::Range(2, 1 << 20));
  step->add_option("--optimizer", step_settings.optimizer, "see starling-train --list optimizers")->capture_default_str();
  step->add_option("--steps", step_settings.steps, "steps to take the median of")->capture_default_str()->check(CLI::Range(1, 100000));
  step->add_option("--threads", threads, "compute threads")->capture_default_str()->check(CLI::Range(1, 1024));
  step->add_flag("--json", json, "one JSON object");

  std::int64_t parameters = 25'600'000;
  int repeats = 20;
  CLI::App* update = app.add_subcommand("update", "the fused update kernels, against copying as many bytes");
  update->add_option("--parameters", parameters, "elements of the bucket")->capture_default_str()->check(CLI::Range(32, 2'000'000'000));
  update->add_option("--threads", threads, "compute threads")->capture_default_str()->check(CLI::Range(1, 1024));
  update->add_option("--repeats", repeats, "runs to take the median of")->capture_default_str()->check(CLI::Range(1, 100000));
  update->add_flag("--json", json, "one JSON object");

  CLI::App* kernels = app.add_subcommand("kernels", "single operations, against memory bandwidth or peak arithmetic");
  kernels->add_option("--threads", threads, "compute threads")->capture_default_str()->check(CLI::Range(1, 1024));
  kernels->add_option("--repeats", repeats, "runs to take the median of")->capture_default_str()->check(CLI::Range(1, 100000));
  kernels->add_flag("--json", json, "one JSON object");

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return 0;
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "[arguments] {}; see starling-bench --help\n", error.what());
    return static_cast<int>(ExitCode::kUsage);
  }
  try {
    register_builtins();
    step_settings.threads = threads;
    step_settings.json = json;
    if (*step) return bench_step(step_settings);
    if (*update) return bench_update(parameters, threads, repeats, json);
    return bench_kernels(threads, repeats, json);
  } catch (...) {
    const Failure failure = failure_of(std::current_exception());
    fmt::print(stderr, "{}\n", failure.message);
    return static_cast<int>(failure.code);
  }
}
