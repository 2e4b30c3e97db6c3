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

  StepBench step_settings;
  CLI::App* step = add("step", "whole training steps of a model on one rank, against their floor",
                       step_settings.json);
  const auto choose = [&](const char* name, std::string& value, const char* doc,
                          const std::vector<std::string>& known) {
    step->add_option(name, value, doc)->capture_default_str()->check(CLI::IsMember(known));
  };
  step->add_option("--model", step_settings.model,
                   "see starling-train --list models; or the model object of a config")
      ->capture_default_str();
  step->add_option("--stem", step_settings.stem, "cifar or imagenet, for resnet18 … resnet152");
  add_number(*step, "--image", step_settings.image, "image size in pixels", 1, 4096);
  add_number(*step, "--classes", step_settings.classes, "outputs", 2, 1 << 20);
  add_number(*step, "--tokens", step_settings.tokens,
             "of a sample of a language model; 0: samples are images", 0, 1 << 20);
  step->add_option("--optimizer", step_settings.optimizer, "see starling-train --list optimizers")
      ->capture_default_str();
  add_number(*step, "--steps", step_settings.steps, "steps to take the median of", 1, 100000);
  add_number(*step, "--batch", step_settings.batch, "samples of a step", 1, 1 << 20);
  choose("--precision", step_settings.precision, "of products and activations",
         {"fp32", "bf16", "fp16"});
  choose("--device", step_settings.device, "cpu or cuda", {"cpu", "cuda"});
  add_threads(step, step_settings.threads);
  step->add_flag("--tf32", step_settings.tf32, "fp32 products may use TF32, on a GPU");
  step->add_flag("--cudnn-benchmark", step_settings.cudnn_benchmark,
                 "time the candidates for each convolution, on a GPU");

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

  PicturesBench pictures_settings;
  CLI::App* pictures =
      add("pictures", "random crops of picture files on one core, against decoding them whole",
          pictures_settings.json);
  pictures
      ->add_option("folder", pictures_settings.folder,
                   "has a folder of JPEG or PNG files for each class")
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
  if (*step) return bench_step(step_settings);
  if (*exchange) return bench_exchange(exchange_settings);
  if (*floor) return bench_floor(floor_settings);
  if (*pictures) return bench_pictures(pictures_settings);
  return bench_augment(augment_settings);
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  starling::cpu::wait_with_short_spins("starling-bench", argv);
  return starling::run_program("starling-bench", [&] { return starling::run_bench(argc, argv); });
}
