// starling-bench: what parts of Starling reach of the machine's limits.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "apps/bench/benches.h"
#include "apps/training/config/plugins.h"
#include "apps/training/estimates/ceilings.h"
#include "apps/training/output/arguments.h"
#include "kernels/cpu/parallel.h"

namespace starling {
namespace {

/// Adds what model is trained, and how, to benchmarks of whole steps.
template <class Settings>
void add_training(CLI::App* app, Settings& settings) {
  app->add_option("--model", settings.model,
                  "see starling-train --list models; or the model object of a config")
      ->capture_default_str();
  app->add_option("--stem", settings.stem, "cifar or imagenet, for resnet18 … resnet152");
  add_number(*app, "--image", settings.image, "image size in pixels", 1, 4096);
  add_number(*app, "--classes", settings.classes, "outputs", 2, 1 << 20);
  add_number(*app, "--tokens", settings.tokens,
             "of a sample of a language model; 0: samples are images", 0, 1 << 20);
  app->add_option("--optimizer", settings.optimizer, "see starling-train --list optimizers")
      ->capture_default_str();
  add_number(*app, "--steps", settings.steps, "steps to take the median of", 1, 100000);
}
void add_precision(CLI::App* app, std::string& precision) {
  app->add_option("--precision", precision, "of products and activations")
      ->capture_default_str()
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
}
void add_device(CLI::App* app, std::string& device) {
  app->add_option("--device", device, "cpu or cuda")
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "cuda"}));
}
void add_batch(CLI::App* app, std::int64_t& batch) {
  add_number(*app, "--batch", batch, "samples of a step", 1, 1 << 20);
}

int run_bench(int argc, char** argv) {
  CLI::App app{"Measures parts of Starling against a limit of the same run.", "starling-bench"};
  app.require_subcommand(1);
  const auto add = [&](const char* name, const char* doc, bool& json) {
    CLI::App* bench = app.add_subcommand(name, doc);
    bench->add_flag("--json", json, "one JSON object");
    return bench;
  };
  const auto add_threads = [&](CLI::App* bench, int& threads) {
    add_number(*bench, "--threads", threads, "compute threads of a rank", 1, 1024);
  };
  const auto add_repeats = [&](CLI::App* bench, int& repeats) {
    add_number(*bench, "--repeats", repeats, "runs to take the median of", 1, 100000);
  };

  StepBench step_settings{{"resnet20", "accum_adamw", 32, 10, 20}, "fp32", 128};
  CLI::App* step =
      add("step", "whole training steps of a model on one rank, against its convolutions alone",
          step_settings.json);
  add_training(step, step_settings);
  add_batch(step, step_settings.batch);
  add_precision(step, step_settings.precision);
  add_threads(step, step_settings.threads);

  std::int64_t parameters = 25'600'000;
  int threads = 1, repeats = 20;
  bool json = false;
  const auto add_parameters = [&](CLI::App* bench) {
    add_number(*bench, "--parameters", parameters, "elements of the bucket", 32, 2'000'000'000);
  };
  CLI::App* update = add("update", "the fused update kernels, against copying as many bytes", json);
  add_parameters(update);
  add_threads(update, threads);
  add_repeats(update, repeats);

  ExchangeBench exchange_settings;
  CLI::App* exchange =
      add("exchange",
          "under mpirun -n 2: exchange and mixed update of one bucket, against MPI_Sendrecv",
          exchange_settings.json);
  add_number(*exchange, "--mb", exchange_settings.mb, "MiB of the bucket", 0.001, 16384.0);
  exchange
      ->add_option("--optimizer", exchange_settings.optimizer,
                   "average (plain averaging), or see starling-train --list optimizers")
      ->capture_default_str();
  add_threads(exchange, exchange_settings.threads);
  add_number(*exchange, "--buckets", exchange_settings.buckets,
             "buckets taken in turn; many find the caches cold", 1, 1024);
  add_repeats(exchange, exchange_settings.repeats);

  KernelsBench kernel_settings;
  CLI::App* kernels =
      add("kernels", "single operations, against memory bandwidth or peak arithmetic",
          kernel_settings.json);
  add_device(kernels, kernel_settings.device);
  add_precision(kernels, kernel_settings.precision);
  kernels
      ->add_option("--batch", kernel_settings.batch,
                   "samples; by default 128 on a CPU, 2048 on a GPU, beyond its caches")
      ->check(whole_in(1, 1 << 16));
  add_threads(kernels, kernel_settings.threads);
  add_repeats(kernels, kernel_settings.repeats);

  FunctionsBench function_settings;
  CLI::App* functions = add(
      "functions", "functions of tensors, forward and backward, against a copy or a large product",
      function_settings.json);
  add_device(functions, function_settings.device);
  add_precision(functions, function_settings.precision);
  functions->add_option("--only", function_settings.only, "those whose name has this");
  add_threads(functions, function_settings.threads);
  add_repeats(functions, function_settings.repeats);

  FloorBench floor_settings;
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
  CLI::App* floor =
      add("floor", "the least time of a training step on a GPU, from shapes alone; also --floor",
          floor_settings.json);
  floor->add_option("config", floor_settings.config,
                    "a config; without one, the rows that docs/checks.md has goals for");
  add_list(*floor, "--set", floor_settings.settings,
           "KEY=VALUE changes the config, as in starling-train");
  floor
      ->add_option("--batch", floor_settings.batch,
                   "samples of a micro-batch instead of the config's")
      ->check(whole_in(1, 1 << 24));
  floor->add_option("--precision", floor_settings.precision,
                    "fp32, bf16, fp16 instead of the config's");
  floor
      ->add_option("--on", floor_settings.on,
                   "the GPU whose ceilings are taken, by a word or all of its name; none is asked")
      ->capture_default_str()
      ->check(of_known_gpu);
  floor
      ->add_option("--bandwidth", floor_settings.bandwidth,
                   "TB/s of a copy, read and written, instead of that GPU's")
      ->check(number_in(1e-6, 1e6));
  floor
      ->add_option("--flops", floor_settings.tflops,
                   "TFLOP/s of a matrix product instead of that GPU's")
      ->check(number_in(1e-6, 1e6));
  add_number(*floor, "--ranks", floor_settings.ranks, "ranks that train together", 1, 1 << 20);

  StepBench gpu_settings{{"resnet50", "adamw", 224, 1000, 40}, "bf16", 256};
  CLI::App* gpu_step =
      add("gpu-step", "whole training steps of a model on one GPU, against their floor",
          gpu_settings.json);
  add_training(gpu_step, gpu_settings);
  add_batch(gpu_step, gpu_settings.batch);
  add_precision(gpu_step, gpu_settings.precision);
  gpu_step->add_flag("--tf32", gpu_settings.tf32, "fp32 products may use TF32");
  gpu_step->add_flag("--cudnn-benchmark", gpu_settings.cudnn_benchmark,
                     "time the candidates for each convolution");
  gpu_step->add_flag(
      "--plain", gpu_settings.plain,
      "without the bucket scheduler and gossip: all updates after the backward pass");

  CLI::App* gpu_update =
      add("gpu-update", "the fused update kernels on one GPU, against copying as many bytes", json);
  add_parameters(gpu_update);
  add_repeats(gpu_update, repeats);

  SchedulerBench scheduler_settings{{"resnet50", "accum_adamw", 224, 1000, 2000}};
  CLI::App* scheduler =
      add("scheduler", "host time that the bucket scheduler and the algorithms take for themselves",
          scheduler_settings.json);
  add_training(scheduler, scheduler_settings);
  add_number(*scheduler, "--bucket-mb", scheduler_settings.bucket_mb, "MiB of a bucket", 0.001,
             16384.0);
  add_number(*scheduler, "--ranks", scheduler_settings.ranks, "ranks that train together", 1,
             1 << 16);
  scheduler->add_option("--topology", scheduler_settings.topology,
                        "see starling-train --list topologies; default: base-2");

  PicturesBench pictures_settings;
  CLI::App* pictures = add("pictures",
                           "random crops of picture files or shards on one core, against decoding "
                           "whole pictures or copying",
                           pictures_settings.json);
  pictures
      ->add_option(
          "folder", pictures_settings.folder,
          "has a folder of JPEG or PNG files for each class, or is what starling-prepare has made")
      ->required();
  add_number(*pictures, "--pictures", pictures_settings.pictures,
             "how many, spread over the folder", 1, 1'000'000);
  add_repeats(pictures, pictures_settings.repeats);

  AugmentBench augment_settings;
  CLI::App* augment =
      add("augment", "random changes of training images on one core", augment_settings.json);
  add_number(*augment, "--size", augment_settings.size, "height and width", 8, 1024);
  add_repeats(augment, augment_settings.repeats);

  if (argc > 1 && std::string(argv[1]) == "--floor") argv[1] += 2;

  refuse_unknown_subcommand(app, argc, argv);
  if (const auto status = parse_arguments(app, argc, argv)) return *status;
  register_builtins();
  if (*gpu_step) return bench_gpu_step(gpu_settings);
  if (*gpu_update) return bench_gpu_update(parameters, repeats, json);
  if (*functions) return bench_functions(function_settings);
  if (*scheduler) return bench_scheduler(scheduler_settings);
  if (*pictures) return bench_pictures(pictures_settings);
  if (*augment) return bench_augment(augment_settings);
  if (*floor) return bench_floor(floor_settings);
  if (*step) return bench_step(step_settings);
  if (*exchange) return bench_exchange(exchange_settings);
  if (*update) return bench_update(parameters, threads, repeats, json);
  return bench_kernels(kernel_settings);
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  starling::cpu::wait_with_short_spins("starling-bench", argv);
  return starling::run_program("starling-bench", [&] { return starling::run_bench(argc, argv); });
}
