// starling-bench: what parts of Starling reach of the machine's limits.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "apps/bench/benches.h"
#include "apps/trainer/config/plugins.h"
#include "apps/trainer/output/arguments.h"
#include "apps/trainer/report/ceilings.h"
#include "kernels/cpu/parallel.h"

namespace starling {
namespace {

int run_bench(int argc, char** argv) {
  CLI::App app{"Measures parts of Starling against a limit of the same run.", "starling-bench"};
  app.require_subcommand(1);
  bool json = false;
  int threads = 1;

  StepBench step_settings;
  CLI::App* step = app.add_subcommand(
      "step", "whole training steps of a model on one rank, against its convolutions alone");
  step->add_option("--model", step_settings.model,
                   "resnet20 … resnet110, resnet18 … resnet152, mlp")
      ->capture_default_str();
  step->add_option("--stem", step_settings.stem, "cifar or imagenet, for resnet18 … resnet152");
  step->add_option("--batch", step_settings.batch, "samples of a step")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  step->add_option("--image", step_settings.image, "image size in pixels")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  step->add_option("--classes", step_settings.classes, "outputs")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 20));
  step->add_option("--optimizer", step_settings.optimizer, "see starling-train --list optimizers")
      ->capture_default_str();
  step->add_option("--precision", step_settings.precision, "of products and activations")
      ->capture_default_str()
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  step->add_option("--steps", step_settings.steps, "steps to take the median of")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  step->add_option("--threads", threads, "compute threads")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  step->add_flag("--json", json, "one JSON object");

  std::int64_t parameters = 25'600'000;
  int repeats = 20;
  CLI::App* update =
      app.add_subcommand("update", "the fused update kernels, against copying as many bytes");
  update->add_option("--parameters", parameters, "elements of the bucket")
      ->capture_default_str()
      ->check(CLI::Range(32, 2'000'000'000));
  update->add_option("--threads", threads, "compute threads")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  update->add_option("--repeats", repeats, "runs to take the median of")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  update->add_flag("--json", json, "one JSON object");

  ExchangeBench exchange_settings;
  CLI::App* exchange = app.add_subcommand(
      "exchange",
      "under mpirun -n 2: exchange and mixed update of one bucket, against MPI_Sendrecv");
  exchange->add_option("--mb", exchange_settings.mb, "MiB of the bucket")
      ->capture_default_str()
      ->check(CLI::Range(0.001, 16384.0));
  exchange
      ->add_option("--optimizer", exchange_settings.optimizer,
                   "average (plain averaging), or see starling-train --list optimizers")
      ->capture_default_str();
  exchange->add_option("--threads", exchange_settings.threads, "compute threads of a rank")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  exchange
      ->add_option("--buckets", exchange_settings.buckets,
                   "buckets taken in turn; many find the caches cold")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  exchange->add_option("--repeats", exchange_settings.repeats, "runs to take the median of")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  exchange->add_flag("--json", exchange_settings.json, "one JSON object");

  KernelsBench kernel_settings;
  CLI::App* kernels = app.add_subcommand(
      "kernels", "single operations, against memory bandwidth or peak arithmetic");
  kernels->add_option("--device", kernel_settings.device, "cpu or cuda")
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "cuda"}));
  kernels->add_option("--precision", kernel_settings.precision, "of products and activations")
      ->capture_default_str()
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  kernels
      ->add_option("--batch", kernel_settings.batch,
                   "samples; by default 128 on a CPU, 2048 on a GPU, beyond its caches")
      ->check(CLI::Range(1, 1 << 16));
  kernels->add_option("--threads", threads, "compute threads")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  kernels->add_option("--repeats", repeats, "runs to take the median of")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  kernels->add_flag("--json", json, "one JSON object");

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
  CLI::App* floor = app.add_subcommand(
      "floor", "the least time of a training step on a GPU, from shapes alone; also --floor");
  floor->add_option("config", floor_settings.config,
                    "a config; without one, the rows that docs/gpu-proof.md has goals for");
  floor
      ->add_option("--set", floor_settings.settings,
                   "KEY=VALUE changes the config, as in starling-train")
      ->allow_extra_args(false);
  floor
      ->add_option("--batch", floor_settings.batch,
                   "samples of a micro-batch instead of the config's")
      ->check(CLI::Range(1, 1 << 24));
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
      ->check(CLI::Range(1e-6, 1e6));
  floor
      ->add_option("--flops", floor_settings.tflops,
                   "TFLOP/s of a matrix product instead of that GPU's")
      ->check(CLI::Range(1e-6, 1e6));
  floor->add_option("--ranks", floor_settings.ranks, "ranks that train together")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  floor->add_flag("--json", json, "JSON");
  GpuStepBench gpu_settings;
  CLI::App* gpu_step = app.add_subcommand(
      "gpu-step", "whole training steps of a model on one GPU, against their floor");
  gpu_step->add_option("--model", gpu_settings.model, "as for step")->capture_default_str();
  gpu_step->add_option("--stem", gpu_settings.stem, "cifar or imagenet, for resnet18 … resnet152");
  gpu_step->add_option("--precision", gpu_settings.precision, "of products and activations")
      ->capture_default_str()
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  gpu_step->add_option("--batch", gpu_settings.batch, "samples of a step")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  gpu_step->add_option("--image", gpu_settings.image, "image size in pixels")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  gpu_step->add_option("--classes", gpu_settings.classes, "outputs")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 20));
  gpu_step
      ->add_option("--optimizer", gpu_settings.optimizer, "see starling-train --list optimizers")
      ->capture_default_str();
  gpu_step->add_option("--steps", gpu_settings.steps, "steps to take the median of")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  gpu_step->add_flag("--tf32", gpu_settings.tf32, "fp32 products may use TF32");
  gpu_step->add_flag("--cudnn-benchmark", gpu_settings.cudnn_benchmark,
                     "time the candidates for each convolution");
  gpu_step->add_flag(
      "--plain", gpu_settings.plain,
      "without the bucket scheduler and gossip: all updates after the backward pass");
  gpu_step->add_flag("--json", json, "one JSON object");

  CLI::App* gpu_update = app.add_subcommand(
      "gpu-update", "the fused update kernels on one GPU, against copying as many bytes");
  gpu_update->add_option("--parameters", parameters, "elements of the bucket")
      ->capture_default_str()
      ->check(CLI::Range(32, 2'000'000'000));
  gpu_update->add_option("--repeats", repeats, "runs to take the median of")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  gpu_update->add_flag("--json", json, "one JSON object");

  SchedulerBench scheduler_settings;
  CLI::App* scheduler = app.add_subcommand(
      "scheduler", "host time that the bucket scheduler and the algorithms take for themselves");
  scheduler->add_option("--model", scheduler_settings.model, "as for step")->capture_default_str();
  scheduler->add_option("--stem", scheduler_settings.stem,
                        "cifar or imagenet, for resnet18 … resnet152");
  scheduler->add_option("--image", scheduler_settings.image, "image size in pixels")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  scheduler->add_option("--classes", scheduler_settings.classes, "outputs")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 20));
  scheduler
      ->add_option("--optimizer", scheduler_settings.optimizer,
                   "see starling-train --list optimizers")
      ->capture_default_str();
  scheduler->add_option("--bucket-mb", scheduler_settings.bucket_mb, "MiB of a bucket")
      ->capture_default_str()
      ->check(CLI::Range(0.001, 16384.0));
  scheduler->add_option("--ranks", scheduler_settings.ranks, "ranks that train together")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 16));
  scheduler->add_option("--topology", scheduler_settings.topology,
                        "see starling-train --list topologies; default: base-2");
  scheduler->add_option("--steps", scheduler_settings.steps, "steps to take the median of")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  scheduler->add_flag("--json", scheduler_settings.json, "one JSON object");

  PicturesBench pictures_settings;
  CLI::App* pictures = app.add_subcommand("pictures",
                                          "random crops of picture files or shards on one core, "
                                          "against decoding whole pictures or copying");
  pictures
      ->add_option(
          "folder", pictures_settings.folder,
          "has a folder of JPEG or PNG files for each class, or is what starling-prepare has made")
      ->required();
  pictures->add_option("--pictures", pictures_settings.pictures, "how many, spread over the folder")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  pictures->add_option("--repeats", pictures_settings.repeats, "rounds to take the median of")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  pictures->add_flag("--json", pictures_settings.json, "one JSON object");

  AugmentBench augment_settings;
  CLI::App* augment =
      app.add_subcommand("augment", "random changes of training images on one core");
  augment->add_option("--size", augment_settings.size, "height and width")
      ->capture_default_str()
      ->check(CLI::Range(8, 1024));
  augment->add_option("--repeats", augment_settings.repeats, "rounds to take the median of")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  augment->add_flag("--json", augment_settings.json, "one JSON object");

  if (argc > 1 && std::string(argv[1]) == "--floor") argv[1] += 2;

  refuse_unknown_subcommand(app, argc, argv);
  if (const auto status = parse_arguments(app, argc, argv)) return *status;
  refuse_odd_numbers(app);
  register_builtins();
  step_settings.threads = threads;
  step_settings.json = json;
  floor_settings.json = json;
  gpu_settings.json = json;
  if (*gpu_step) return bench_gpu_step(gpu_settings);
  if (*gpu_update) return bench_gpu_update(parameters, repeats, json);
  if (*scheduler) return bench_scheduler(scheduler_settings);
  if (*pictures) return bench_pictures(pictures_settings);
  if (*augment) return bench_augment(augment_settings);
  if (*floor) return bench_floor(floor_settings);
  if (*step) return bench_step(step_settings);
  if (*exchange) return bench_exchange(exchange_settings);
  if (*update) return bench_update(parameters, threads, repeats, json);
  kernel_settings.threads = threads;
  kernel_settings.repeats = repeats;
  kernel_settings.json = json;
  return bench_kernels(kernel_settings);
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  starling::cpu::wait_with_short_spins("starling-bench", argv);
  return starling::run_program("starling-bench", [&] { return starling::run_bench(argc, argv); });
}
