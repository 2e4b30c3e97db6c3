#include "apps/training/config/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "apps/inference/checkpoint_file.h"
#include "apps/training/config/habits.h"
#include "apps/training/output/arguments.h"
#include "core/error.h"
#include "core/file_io.h"

namespace starling {

TrainOptions parse_train_options(int argc, char** argv) {
  TrainOptions options;
  CLI::App app{
      "Trains a model on this rank, or on all ranks that mpirun started, as a JSON config says."};
  app.name("starling-train");
  app.set_help_flag();
  app.add_flag("-h,--help", options.help, "print this text");
  app.add_flag("--version", options.version, "print version, commit and libraries");
  app.add_option("config", options.config,
                 "the config, a JSON file; with --resume it may be left out");
  add_list(app, "--set", options.settings,
           "key.path=value: change a config key; the value is JSON or a plain string");
  app.add_option("--output", options.output,
                 "folder for the run's files (default: runs/<config name>-<time>)");
  app.add_option("--resume", options.resume,
                 "a run's folder, or latest: the newest complete checkpoint under --output");
  app.add_flag("--elastic", options.elastic,
               "with --resume: go on with another number of ranks, as the config's `elastic` says")
      ->needs("--resume");
  app.add_option("--join", options.join,
                 "a folder of a run that is going on: be one rank more of it")
      ->excludes("config", "--output", "--resume");
  app.add_option("--secret", options.secret,
                 "with --join: file of the run's secret (default: the config's, or RUN/secret)")
      ->needs("--join");
  app.add_option("--device", options.device, "auto, cpu or cuda; replaces the config's")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--trace", options.trace,
                 "write a timeline of all ranks for Perfetto or chrome://tracing");
  app.add_flag("--dry-run", options.dry_run,
               "print data, topology, length, parameters, buckets and memory, and stop")
      ->excludes("--join");
  app.add_flag("--json", options.json,
               "with --dry-run: as JSON, with the resolved config and each bucket")
      ->needs("--dry-run");
  app.add_option("--network", options.network,
                 "with --dry-run: Gbit/s of a host's link each way, or a file of `starling-topo "
                 "measure` (1)")
      ->needs("--dry-run");
  app.add_flag("--check-gradients", options.check_gradients,
               "compare the gradients of each layer and of the loss with central differences in "
               "fp64, and stop");
  app.add_option(
      "--list", options.list,
      "print the names of one kind: models, layers, topologies, algorithms, transports, "
      "optimizers, schedules, data, samplers, augmentations, tasks, losses, metrics, keys");
  app.add_flag("--long", options.list_long,
               "with --list: a line on each, as a terminal gets it anyway")
      ->needs("--list");
  app.add_option("--evaluate", options.evaluate,
                 "test a model.safetensors, or that of a run's folder, without training; on "
                 "its own data set, or on that of a config");
  app.add_option("--test", options.test,
                 "with --evaluate: all samples of this file or folder are the test set")
      ->needs("--evaluate");
  app.add_option("--confusion", options.confusion,
                 "with --evaluate: write which classes are taken for which, as CSV")
      ->needs("--evaluate");
  app.add_option("--samples", options.samples,
                 "with --evaluate: write each test sample with its prediction, the worst "
                 "first, as CSV")
      ->needs("--evaluate");
  std::string samples_of;
  app.add_option("--samples-of", samples_of,
                 "with --samples: train for the samples that training takes (test)")
      ->check(CLI::IsMember({"train", "test"}))
      ->needs("--samples")
      ->excludes("--test");
  app.add_option("--lr-find", options.lr_find,
                 "try growing learning rates, write the losses to this file as CSV, suggest a "
                 "rate, and stop")
      ->excludes("--evaluate", "--resume", "--output");  // it trains nothing that stays
  app.add_option("--lr-from", options.lr_range.from, "with --lr-find: the first rate (1e-7)")
      ->check(number_in(1e-30, 1e30))
      ->needs("--lr-find");
  app.add_option("--lr-to", options.lr_range.to, "with --lr-find: the last rate (10)")
      ->check(number_in(1e-30, 1e30))
      ->needs("--lr-find");
  app.add_option("--lr-steps", options.lr_range.steps, "with --lr-find: how many (100)")
      ->check(whole_in(3, 1'000'000))
      ->needs("--lr-find");
  app.add_flag("--describe-config", options.describe_config, "print every config key as Markdown");
  app.footer("On several ranks: mpirun --oversubscribe -n 4 starling-train CONFIG.json ...");
  options.help_text = app.help();
  refuse_empty_arguments(argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    fail(ExitCode::kUsage, "arguments", "{}",
         answer_to_habits(app, {argv + 1, argv + argc})
             .value_or(argument_error(app, error, argc, argv)));
  }
  options.of_training = samples_of == "train";
  if (const LrRange& lr = options.lr_range; !(lr.to > lr.from))
    fail(ExitCode::kUsage, "arguments", "--lr-from {} --lr-to {}: the last is to be the larger",
         lr.from, lr.to);
  // A run's own config, with every key, is in its folder.
  const std::string run = options.resume == "latest" ? options.output : options.resume;
  if (options.config.empty() && !run.empty() && std::filesystem::exists(run + "/config.json"))
    options.config = run + "/config.json";
  if (!run.empty() && (options.config.empty() || options.resume != "latest")) {
    const std::string above = run_of_checkpoint(run), missing = what_is_missing(run);
    if (!above.empty())
      fail(ExitCode::kUsage, "resume",
           "{} is a checkpoint's folder; needed: that of its run, --resume {}", run, above);
    if (!missing.empty() || options.config.empty())
      fail(ExitCode::kUsage, "resume",
           "{}; needed: a run's folder, whose config.json says what to go on with{}",
           missing.empty() ? run + " has no config.json" : missing,
           options.resume == "latest" ? ", or a config: starling-train CONFIG.json" : "");
  }
  const bool needs_config = !options.help && !options.version && !options.describe_config &&
                            options.list.empty() && options.evaluate.empty() &&
                            options.join.empty();
  if (needs_config && options.config.empty())
    fail(ExitCode::kUsage, "arguments", "no config given; needed: starling-train CONFIG.json");
  return options;
}

}  // namespace starling
