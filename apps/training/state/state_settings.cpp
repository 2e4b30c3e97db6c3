#include "apps/training/state/state_settings.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "apps/inference/adapter.h"
#include "apps/inference/model_source.h"

namespace starling {

InitialFile read_initial_file(ConfigSection& root) {
  InitialFile settings;
  ConfigSection init =
      root.section("init", "initial values from a file; a text is its file", "file");
  init.read("file", settings.file,
            "a .safetensors file with the model's names, such as another run's model.safetensors, "
            "or a folder that has one, such as Hugging Face's: its config.json must say the same "
            "of the model");
  settings.skip = init.texts("skip", {},
                             "names of tensors that keep their own initialisation: [\"fc.*\"]; "
                             "* is any text, ? a character");
  init.read("adapter", settings.adapter,
            "with lora: an adapter of the file's model, PEFT's folder or another run's with lora, "
            "to go on from");
  init.finish();
  for (const auto& [key, given] :
       {std::pair("skip", !settings.skip.empty()), {"adapter", !settings.adapter.empty()}}) {
    if (settings.file.empty() && given)
      init.error("file", "is missing beside {}; needed: a .safetensors file", key);
  }
  ModelSource found = find_model(settings.file);
  settings.file = std::move(found.path);
  settings.told = std::move(found.told);
  if (root.has("lora")) {
    std::error_code error;
    if (const auto adapter = std::filesystem::exists(settings.file, error)
                                 ? read_adapter(settings.file, false)
                                 : std::nullopt) {
      if (!settings.adapter.empty())
        init.error("file", "is an adapter, {}, and so is adapter; give one of them, or the base",
                   settings.file);
      settings.adapter = std::exchange(settings.file, adapter->base.file);
      if (!std::filesystem::exists(settings.file, error))
        init.error("file", "is {}, an adapter {}; give both: {{\"file\": BASE, \"adapter\": …}}",
                   settings.adapter,
                   settings.file.empty()
                       ? "that does not name its base"
                       : fmt::format("of the base {}, which is not here", settings.file));
    }
    settings.file = find_model(settings.file).path;
    settings.adapter = find_model(settings.adapter).path;
  } else if (!settings.adapter.empty()) {
    init.error("adapter", "is for a run with lora; give that section, or the adapter as file");
  }
  if (settings.skip.empty() && settings.adapter.empty()) {
    root.resolve("init", settings.file);
  } else {
    init.resolve("file", settings.file);
    init.resolve("adapter", settings.adapter);
  }
  return settings;
}

namespace {

/// Schedule-free rules average their steps themselves.
void refuse_second_average(const ConfigSection& root, const char* key,
                           const OptimizerSettings& optimizer) {
  if (optimizer.rule->facts().evaluated.state >= 0)
    root.error(key, "averages the parameters, but {} averages its steps already; leave it out",
               optimizer.type);
}

}  // namespace

std::optional<AverageSettings> read_average(ConfigSection& root,
                                            const OptimizerSettings& optimizer) {
  const char* doc =
      "a moving average of the parameters, tested and saved beside the mean model; off where it is "
      "not given";
  std::optional<ConfigSection> ema = root.optional_section("ema", doc);
  if (!ema) return std::nullopt;
  AverageSettings settings;
  ema->read("decay", settings.decay, Range::half_open(0.0, 1.0),
            "share of the average that stays at each of its updates");
  ema->read("every", settings.every, Range::closed(1, 1e9), "steps between updates of the average");
  ema->finish();
  refuse_second_average(root, "ema", optimizer);
  return settings;
}

std::optional<LookaheadSettings> read_lookahead(ConfigSection& root,
                                                const OptimizerSettings& optimizer,
                                                const SyncSettings& sync) {
  const char* doc =
      "slow numbers that the model goes back towards every few steps (arXiv 1907.08610); off where "
      "it is not given. Goes with gossip and allreduce";
  std::optional<ConfigSection> lookahead = root.optional_section("lookahead", doc);
  if (!lookahead) return std::nullopt;
  LookaheadSettings settings;
  lookahead->read("every", settings.every, Range::closed(1, 1e9),
                  "steps between meetings of the model and the slow numbers");
  lookahead->read("decay", settings.decay, Range::half_open(0.0, 1.0),
                  "share of the slow numbers that stays at a meeting: 1 - α of the paper");
  lookahead->read("power", settings.power, Range::closed(0.0, 100.0),
                  "with it the share is decay·(step / steps)^power: it grows");
  lookahead->finish();
  refuse_second_average(root, "lookahead", optimizer);
  for (const AlgorithmPlan* plan : sync.plans()) {
    if (plan->name != "gossip" && plan->name != "allreduce")
      root.error("lookahead",
                 "does not go with {}, which keeps numbers of its own about the parameters; "
                 "allowed: gossip, allreduce",
                 plan->label());
  }
  return settings;
}

ElasticSettings read_elastic(ConfigSection& root) {
  ElasticSettings settings;
  ConfigSection elastic = root.section(
      "elastic",
      "how a run goes on with another number of ranks: by --resume … --elastic, or by `survive`");
  elastic.read("keep", settings.keep_global_batch, {{"global_batch", true}, {"rank_batch", false}},
               "global_batch: the samples of an update, to the nearest number that the ranks can "
               "share; rank_batch: `batch_size`, so that fewer ranks make smaller updates, and "
               "more of them in an epoch");
  double power = 1.0;
  elastic.read("lr_scaling", power, {{"linear", 1.0}, {"sqrt", 0.5}, {"none", 0.0}},
               "with rank_batch: how the rate follows the samples of an update");
  if (!settings.keep_global_batch) settings.lr_power = power;
  elastic.read("topology", settings.topology,
               "in place of a sync.topology that cannot have so many ranks");
  elastic.read(
      "survive", settings.survive,
      "after a lost rank the others go on in the same processes, without its replica, from "
      "the newest checkpoint; needs Open MPI 5 under mpirun --with-ft ulfm, and CPUs; elsewhere a "
      "warning says so, and a lost rank ends the run");
  elastic.read(
      "join", settings.join,
      "processes that know the secret may join while it runs (`--join`), with sync.replica as many "
      "at once, and the others go on without a rank that is lost and its replica, from what they "
      "have in memory; needs sync.transport zeromq, and gossip, gossip_diloco or diloco");
  elastic.read("rejoin", settings.rejoin, Range::closed(0, 1e6),
               "with join: how often a rank that was killed or has crashed is started again on its "
               "host, and joins");
  elastic.finish();
  return settings;
}

CheckpointSettings read_checkpoint(ConfigSection& root, const std::vector<MetricValue>& tested) {
  ConfigSection checkpoint =
      root.section("checkpoint", "saved states of the run; one more comes at the end");
  CheckpointSettings settings{.interval = read_interval(checkpoint, "save")};
  checkpoint.read("keep", settings.keep, Range::closed(1, 1e6), "newest checkpoints that are kept");
  const char* doc =
      "keeps checkpoints/best too, the one that tested best; true: by the first share that tests "
      "have, or else their loss";
  if (checkpoint.raw("best", "boolean or object", doc).is_object()) {
    ConfigSection best = checkpoint.section("best", doc);
    settings.best = read_decisive(best, tested);
    best.finish();
  } else if (checkpoint.boolean("best", false, doc) && !tested.empty()) {
    const MetricValue& value = decisive(tested);
    settings.best = {"test_" + value.name, value.share || value.rises};
  }
  checkpoint.finish();
  return settings;
}

}  // namespace starling
