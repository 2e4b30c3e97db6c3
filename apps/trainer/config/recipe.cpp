#include "apps/trainer/config/recipe.h"

#include <algorithm>
#include <optional>

#include "apps/trainer/norm_statistics.h"

namespace starling {

namespace {

/// A section that does something only where it is given; none where it is not, and the resolved
/// config says so.
std::optional<ConfigSection> optional_section(ConfigSection& root, const char* key,
                                              const char* doc) {
  if (root.has(key) || root.describing()) return root.section(key, doc);
  root.raw(key, "object", doc);
  return std::nullopt;
}

}  // namespace

void read_initial_file(ConfigSection& root, TrainConfig& config) {
  ConfigSection init =
      root.section("init", "initial values from a file; a text is its file", "file");
  config.init.file = init.text(
      "file", "",
      "a .safetensors file with the model's names, such as another run's model.safetensors");
  config.init.skip = init.texts("skip", {},
                                "names of tensors that keep their own initialisation: [\"fc.*\"]; "
                                "* is any text, ? a character");
  if (root.describing()) return;
  init.finish();
  if (config.init.file.empty() && !config.init.skip.empty())
    init.error("file", "is missing beside skip; needed: a .safetensors file");
  if (config.init.skip.empty()) root.resolve("init", config.init.file);
}

void read_average(ConfigSection& root, TrainConfig& config) {
  const char* doc =
      "a moving average of the parameters, tested and saved beside the mean model; off where it is "
      "not given";
  std::optional<ConfigSection> given = optional_section(root, "ema", doc);
  if (!given) return;
  ConfigSection& ema = *given;
  AverageSettings settings;
  settings.decay = ema.number("decay", 0.999, Range::half_open(0.0, 1.0),
                              "share of the average that stays at each of its updates");
  settings.every =
      ema.integer("every", 1, Range::closed(1, 1e9), "steps between updates of the average");
  if (root.describing()) return;
  ema.finish();
  config.ema = settings;
  if (config.rule->facts().evaluated.state >= 0) {
    root.error(
        "ema",
        "averages the parameters, but {} tests an average of its steps already; leave it out",
        config.optimizer);
  }
}

void read_lookahead(ConfigSection& root, TrainConfig& config) {
  const char* doc =
      "slow numbers that the model goes back towards every few steps (arXiv 1907.08610); off where "
      "it is not given. Goes with gossip and "
      "allreduce";
  std::optional<ConfigSection> given = optional_section(root, "lookahead", doc);
  if (!given) return;
  ConfigSection& lookahead = *given;
  LookaheadSettings settings;
  settings.every = lookahead.integer("every", 5, Range::closed(1, 1e9),
                                     "steps between meetings of the model and the slow numbers");
  settings.decay =
      lookahead.number("decay", 0.5, Range::half_open(0.0, 1.0),
                       "share of the slow numbers that stays at a meeting: 1 - α of the paper");
  settings.power = lookahead.number("power", 0.0, Range::closed(0.0, 100.0),
                                    "with it the share is decay·(step / steps)^power: it grows");
  if (root.describing()) return;
  lookahead.finish();
  config.lookahead = settings;
  if (config.rule->facts().evaluated.state >= 0)
    root.error("lookahead",
               "averages the parameters, but {} averages its steps already; leave it out",
               config.optimizer);
  const auto check = [&](const AlgorithmPlan& plan) {
    if (plan.name != "gossip" && plan.name != "allreduce")
      root.error("lookahead",
                 "does not go with {}, which keeps numbers of its own about the parameters; "
                 "allowed: gossip, allreduce",
                 plan.label());
  };
  check(config.algorithm);
  for (const SyncPhase& phase : config.phases) check(phase.algorithm);
}

void read_views(ConfigSection& evaluate, TrainConfig& config) {
  const std::string tta = evaluate.choice(
      "tta", "none", test_view_names(),
      "what tests and starling-predict show of an image, before the mean of the outputs is taken; "
      "mirror: it and its mirror image; "
      "mirror_translate: both, and both moved by a pixel to either side with half the weight each");
  if (evaluate.describing()) return;
  config.views = test_views(tta);
  if (config.views.size() > 1 && !config.data.find("image"))
    evaluate.error(
        "tta", "is {}, which is for images, and this data set has none; allowed here: none", tta);
}

void read_batch_norm(ConfigSection& sync, TrainConfig& config, int ranks) {
  const std::string statistics =
      sync.choice("batch_norm", "local", {"local", "sync", "recalibrate"},
                  "statistics of batch norms; local: each rank trains with its own batch's, and "
                  "the mean model has the mean of them; sync: "
                  "with those of all ranks' batches; recalibrate: as local, but the mean model's "
                  "are measured on training batches before "
                  "each test");
  if (statistics == "local" && !sync.describing()) return;
  const std::int64_t batches =
      sync.integer("recalibrate_batches", 20, Range::closed(1, 1e6),
                   "recalibrate: training batches of each rank that are measured");
  if (sync.describing()) return;
  const auto& buffers = config.model->buffers();
  if (std::none_of(buffers.begin(), buffers.end(),
                   [](const ModelBuffer* buffer) { return is_norm_statistic(buffer->name); }))
    sync.error("batch_norm", "is {}, but the model has no batch norm; allowed here: local",
               statistics);
  if (statistics == "recalibrate") {
    config.recalibrate_batches = batches;
    return;
  }
  if (config.algorithm.steps.asynchronous) {
    sync.error(
        "batch_norm",
        "is sync, but the steps of {} differ from rank to rank; allowed here: local, recalibrate",
        config.algorithm.label());
  }
  for (const SyncPhase& phase : config.phases) {
    if (phase.algorithm.steps.asynchronous)
      sync.error(
          "batch_norm",
          "is sync, but the steps of {} differ from rank to rank; allowed here: local, recalibrate",
          phase.algorithm.label());
  }
  config.synchronized_norms = ranks > 1;
}

}  // namespace starling
