#include "apps/training/config/train_config.h"

#include <algorithm>
#include <utility>

#include "apps/inference/hugging_face.h"
#include "apps/inference/plugins.h"
#include "apps/training/config/graph_plan.h"
#include "apps/training/config/habits.h"
#include "apps/training/tasks/metric.h"
#include "core/config_doc.h"
#include "core/error.h"
#include "core/text.h"

namespace starling {
namespace {

void check_joining(const ConfigSection& root, const SyncSettings& sync) {
  constexpr const char* kKey = "elastic.join";
  if (!sync.transport.lets_join)
    root.error(kKey, "is true, but ranks join over sync.transport zeromq alone, not {}; set that",
               sync.transport.name);
  if (sync.auto_algorithm || sync.auto_topology || sync.auto_bucket)
    root.error(kKey,
               "is true, but a key of sync is auto, which is measured at the start alone; name it");
  for (const AlgorithmPlan* plan : sync.plans()) {
    if (plan->steps.joins_every == 0)
      root.error(kKey,
                 "is true, but ranks cannot join {}; allowed: gossip, gossip_diloco, or "
                 "diloco",
                 plan->label());
  }
}

TrainConfig read_root(ConfigSection& root, const RankLayout& given_site, DataUse use = {}) {
  TrainConfig config;
  load_plugins(root.texts(
      "plugins", {},
      "shared libraries to open first; they register layers, topologies, optimizers, …"));
  root.read("seed", config.seed, Range::closed(0, 9007199254740991.0), "of everything random");
  config.device = read_device(root);
  root.read("tensorboard", config.output.tensorboard, "write events for TensorBoard");
  root.read("prometheus", config.output.prometheus,
            "file with the newest metrics, in Prometheus' text form");
  root.read("unused_parameters", config.optimizer.allow_unused, {{"error", false}, {"allow", true}},
            "what a parameter without gradient is");
  root.read("check_numbers", config.device.check_numbers,
            "ends with status 4 at the first parameter, output, loss or gradient that is not "
            "finite, by layer, rank and step; slow, as the host looks at all of them");
  root.read("trace", config.output.trace, "file for a timeline of all ranks, as `--trace`");
  config.output.flight_recorder =
      root.choice("flight_recorder", "on", {"on", "end", "off"},
                  "on: each rank's last events are written when something goes wrong; end: also at "
                  "the end of a run");
  config.state.init = read_initial_file(root);
  root.read("log_every", config.output.log_every, Range::closed(1, 1e9),
            "steps between lines of metrics.jsonl");

  use.initial_model = config.state.init.file;
  use.skips_initial = !config.state.init.skip.empty();
  config.data = read_data(root, config.seed, given_site, use);
  std::vector<std::string> metrics;
  config.task = read_task(root, config.data.info, metrics);
  config.model = read_model(root, config.data.info, config.task.get());
  config.state.lora =
      read_lora(root, !config.state.init.file.empty(), config.state.init.adapter, *config.model);
  if (config.device.recompute == Recompute::kBlock && !config.model->has_blocks())
    root.error("recompute",
               "is block, but the model has no blocks; allowed: none, cheap, or layers of type "
               "`checkpoint` in a `sequential` model");
  config.length = read_length(root);
  read_optimizer(root, *config.model, config.device.type, config.optimizer);
  if (config.device.type == "cuda") {
    if (const auto error = config.model->unsupported(config.device.compute, DeviceType::kCuda))
      throw Error(*error);
  }
  config.loss = read_loss(root, config.data.info, config.model.get(), metrics, config.task.get());
  settle_mixing(root, config.data.augment, config.data.info, *config.model,
                config.length.batch_size, *config.task);
  config.state.ema = read_average(root, config.optimizer);
  config.optimizer.clip = read_clip(root);
  config.sync = read_sync(root, {config.device, config.optimizer, *config.model, given_site,
                                 config.data.dirichlet_alpha > 0.0});
  RankLayout site = given_site;
  site.replica = config.sync.replica;
  config.state.lookahead = read_lookahead(root, config.optimizer, config.sync);
  if (config.device.cuda_graphs == GraphChoice::kOn && config.device.type == "cuda") {
    if (const std::string why = plan_graphs(config, site).why_not; !why.empty())
      root.error("cuda_graphs", "is true, but {}; allowed here: auto, false", why);
  }
  config.state.elastic = read_elastic(root);
  if (config.state.elastic.join) check_joining(root, config.sync);
  for (std::size_t k = 0; k < config.sync.phases(); ++k) {
    const auto& [key, count] = config.sync.phase(k).algorithm.needs.least_ranks;
    const int ranks = site.replicas().ranks;
    if (count > ranks && !config.state.elastic.join)  // where more may join
      root.error(SyncSettings::key(k) + ".algorithm." + key,
                 "is {}, but there {} {}; allowed: <= {}", count, ranks == 1 ? "is" : "are",
                 counted(ranks, site.replica > 1 ? "replica" : "rank"), ranks);
  }
  if (config.state.elastic.join && site.replica > 1 && config.device.type == "cuda")
    root.error("elastic.join",
               "is true, but with sync.replica {} each GPU of a replica has parts of its state, "
               "which a lost rank takes along; leave it out, and go on from a checkpoint by "
               "--resume … --elastic",
               site.replica);
  if ((config.state.elastic.join || config.state.elastic.survive) && config.sync.replica_by_host)
    root.error("sync.replica",
               "is host, but ranks that are lost or join change how many a host has; give the "
               "number, here {}",
               site.replica);
  if (config.state.elastic.join && config.state.elastic.survive)
    root.error("elastic.survive",
               "is true, and so is join, which goes on over ZeroMQ; leave one of them out");
  config.evaluate = read_evaluate(root, config.data.info);
  std::vector<MetricValue> tested = tested_values(*config.task, config.data.info, *config.model);
  const std::size_t own = tested.size();
  for (std::size_t k = 0; config.state.ema && k < own; ++k) {
    tested.push_back(tested[k]);
    tested.back().name = "ema_" + tested[k].name;
  }
  config.state.checkpoint = read_checkpoint(root, tested);
  config.state.early_stopping = read_early_stopping(root, tested, config.evaluate.interval.any());
  return config;
}

/// The object with its keys in the order in which they were declared, which a JSON object forgets.
nlohmann::ordered_json in_order(const nlohmann::json& object, const std::vector<ConfigKey>& keys,
                                const std::string& above = {}) {
  nlohmann::ordered_json result = nlohmann::ordered_json::object();
  for (const ConfigKey& key : keys) {
    if (!key.path.starts_with(above)) continue;
    const std::string name = key.path.substr(above.size());
    const auto value = object.find(name);
    if (value == object.end()) continue;
    result[name] = value->is_object() ? in_order(*value, keys, key.path + ".")
                                      : nlohmann::ordered_json(*value);
  }
  return result;
}

/// "name" and the summary as a sentence below it, in lines of 100 columns.
template <class R>
std::string head_of(const R& registry, const std::string& name) {
  const std::string& summary = registry.summary(name);
  if (summary.empty()) return name;
  std::string text = name + "\n\n" + summary + ".";
  for (std::size_t begin = name.size() + 2; text.size() - begin > 100;) {
    const std::size_t space = text.rfind(' ', begin + 100);
    if (space == std::string::npos || space < begin) break;
    text[space] = '\n';
    begin = space + 1;
  }
  return text;
}

/// What is known of the types of one kind.
struct PartKind {
  struct Type {
    std::string name, head;
    std::vector<ConfigKey> keys;
    nlohmann::ordered_json sample;
  };
  std::string heading, where;
  std::vector<Type> types;

  template <class R, class... Args>
  PartKind(const R& registry, std::string its_heading, std::string its_where, const Args&... args)
      : heading(std::move(its_heading)), where(std::move(its_where)) {
    for (const std::string& name : registry.names()) {
      const ConfigSection section = ConfigSection::described_by(
          [&](ConfigSection& keys) { (void)registry.make(name, where, keys, args...); });
      const std::vector<ConfigKey> keys = section.declared();
      types.push_back({name, head_of(registry, name), keys, in_order(section.resolved(), keys)});
    }
  }
  /// An object with all defaults for each type, and a table of its keys.
  std::string text() const {
    std::string text = "# " + heading + "\n\n";
    for (const Type& type : types) {
      nlohmann::ordered_json sample{{"type", type.name}};
      sample.update(type.sample);
      const std::string head = type.head + "\n\n";
      text += type.keys.empty()
                  ? fmt::format("## {}`{{\"type\": \"{}\"}}`; no other keys.\n\n", head, type.name)
                  : config_markdown(head + config_sample(sample), type.keys) + "\n";
    }
    return text;
  }
};

/// Kinds whose types are chosen by a key, `where`.
std::vector<PartKind> kinds_of_types() {
  return {
      {datasets(), "Data (`data.type`)", "data.type", std::uint64_t{1}},
      {samplers(), "Samplers (`data.sampler.type`)", "data.sampler.type"},
      {models(), "Models (`model.type`)", "model.type", ModelOutputs{0}},
      {layers(), "Layers (`type` in `layers` of a `sequential` model)", "type"},
      {tasks(), "Tasks (`task.type`)", "task.type", DatasetInfo{}},
      {losses(), "Losses (`loss.type`)", "loss.type"},
      {optimizers(), "Optimizers (`optimizer.type`)", "optimizer.type"},
      {schedules(), "Schedules (`schedule.type`)", "schedule.type", ScheduleInputs{}},
      {algorithms(), "Algorithms (`sync.algorithm.type`)", "sync.algorithm.type"},
      {transports(), "Transports (`sync.transport.type`)", "sync.transport.type"},
      {topologies(), "Topologies (`sync.topology.type`)", "sync.topology.type", RankLayout{8, 2}},
  };
}

/// Random changes of images, whose keys the table of the whole config has.
std::string describe_augmentations() {
  const PartKind kind(augmentations(), "", "data.augment", Shape{32, 32, 3});
  std::string text = "# Augmentations (keys of `data.augment`)\n\n";
  for (const PartKind::Type& type : kind.types)
    text += fmt::format("## {}\n\n{}\n\n", type.head, config_sample(type.sample));
  return text;
}

/// The keys that do not depend on a type: those of a config that leaves out as little as it can.
std::vector<ConfigKey> common_keys() {
  ConfigSection root = ConfigSection::describe({
      {"device", "cpu"},
      {"data",
       {{"type", "synthetic"}, {"partition", {{"type", "dirichlet"}}}, {"cache", "memory"}}},
      {"model", {{"type", "resnet20"}}},
      {"epochs", 1},
      {"sync", {{"batch_norm", "recalibrate"}}},
      {"checkpoint", {{"best", nlohmann::json::object()}}},
  });
  read_root(root, {});
  return root.declared();
}

/// A pass that operations refuse is the config's fault where a smaller batch_size is computed.
ShapeTrace trace_pass(const TrainConfig& config) {
  const auto trace = [&](std::int64_t batch_size) {
    PassShape shape = config.pass_shape();
    shape.batch_size = batch_size;
    return trace_shapes(*config.task, *config.model, shape, config.optimizer.allow_unused);
  };
  const std::int64_t given = config.length.batch_size;
  try {
    return trace(given);
  } catch (const Error& refusal) {
    if (refusal.code() != ExitCode::kInternal) throw;
    std::int64_t works = 0, fails = given;
    while (fails - works > 1) {
      const std::int64_t middle = works + (fails - works) / 2;
      try {
        trace(middle);
        works = middle;
      } catch (const Error&) {
        fails = middle;
      }
    }
    if (works == 0) throw;  // no matter of the batch's size
    fail(ExitCode::kUsage, "config", {.file = config.source, .key = "batch_size"},
         "{} is more than the model can take at once ({}); allowed: <= {}", given,
         message_of(refusal), works);
  }
}

}  // namespace

TrainConfig read_train_config(const nlohmann::json& given, const std::string& source,
                              const RankLayout& site, bool check_size, DataUse use) {
  ConfigSection root(with_pretrained(given, source), source, hint_of_key);
  TrainConfig config;
  try {
    config = read_root(root, site, std::move(use));
    root.finish();
  } catch (const Error& error) {  // a registry knows the key of an unknown name, not the file
    ErrorParts parts = error.parts();
    if (parts.component != "config" || parts.where.key.empty() || !parts.where.file.empty()) throw;
    parts.where.file = source;
    throw Error(error.code(), parts);
  }
  config.source = source;
  config.resolved = root.resolved();
  config.written = given;
  // What opens for a dry run too is checked once it is open
  RankLayout with_replicas = site;
  with_replicas.replica = config.sync.replica;
  if (check_size && !config.data.dataset->countable())
    check_data_size(config, source, with_replicas);
  return config;
}

std::vector<ConfigKey> config_keys() {
  std::vector<ConfigKey> keys = common_keys();
  for (const PartKind& kind : kinds_of_types()) {
    if (kind.where == "type") continue;  // a layer's keys have no path of their own
    const std::string above = kind.where.substr(0, kind.where.rfind('.') + 1);
    std::vector<std::string> types;
    for (const PartKind::Type& type : kind.types) {
      types.push_back(type.name);
      for (ConfigKey key : type.keys) keys.emplace_back(std::move(key)).path.insert(0, above);
    }
    std::ranges::find(keys, kind.where, &ConfigKey::path)->allowed =
        fmt::format("{}", fmt::join(types, ", "));
  }
  for (ConfigKey& key : keys) {
    // A text in place of an object is its type
    const auto type = std::ranges::find(keys, key.path + ".type", &ConfigKey::path);
    if (key.type == "object or text" && type != keys.end())
      key.allowed = type->allowed;
    else if (key.type != "text")
      key.allowed = key.type == "boolean" ? "true, false" : "";
  }
  return keys;
}

std::string describe_config() {
  const std::vector<ConfigKey> keys = common_keys();
  const nlohmann::json least{
      {"data", {{"type", "synthetic"}}}, {"model", {{"type", "mlp"}}}, {"epochs", 1}};
  const nlohmann::json resolved = read_train_config(least, "the sample", {}).resolved;
  std::string text =
      "# Config keys\n\nWritten by `starling-train --describe-config` from the declarations that "
      "read a config; do not edit.\n"
      "Keys of a `type` stand in its own section below.\n\n"
      "Each object is a sample with all defaults. Required keys have a placeholder there, such as "
      "1 or \"…\".\n\n";
  text += config_markdown("The config\n\n" + config_sample(in_order(resolved, keys)), keys) + "\n";
  for (const PartKind& kind : kinds_of_types()) {
    text += kind.text();
    if (kind.where == "data.type") text += describe_augmentations();
  }
  while (text.ends_with("\n\n")) text.pop_back();
  return text;
}

ShapeTrace trace_shapes(const TrainConfig& config) {
  ShapeTrace trace = trace_pass(config);
  const std::int64_t buckets = std::ssize(plan_buckets(config, trace).buckets);
  for (std::size_t k = 0; k < config.sync.phases(); ++k) {
    const auto& least = config.sync.phase(k).algorithm.needs.least_buckets;
    if (least.count <= buckets) continue;
    fail(ExitCode::kUsage, "config",
         {.file = config.source, .key = SyncSettings::key(k) + ".algorithm." + least.key},
         "is {}, but the model has {}; allowed: <= {}, or a smaller sync.bucket_mb", least.count,
         counted(buckets, "bucket"), buckets);
  }
  return trace;
}

void tell_classes(TrainConfig& config) {
  const bool by_class = config.data.sampler->by_class();
  if (!config.loss.balanced_classes && !by_class) return;
  const std::vector<std::int32_t> classes = training_classes(*config.data.dataset);
  if (by_class) config.data.sampler->set_classes(classes);
  if (!config.loss.balanced_classes) return;
  std::vector<std::int64_t> counts(static_cast<std::size_t>(config.data.info.classes), 0);
  for (const std::int32_t c : classes) ++counts[static_cast<std::size_t>(c)];
  const std::vector<double> weights = balanced_weights(counts, config.model->output_shape().back());
  config.task->set_class_weights(weights);
  const auto names = config.data.info.names_of_classes(config.data.info.classes);
  const auto most = static_cast<std::size_t>(std::ranges::max_element(counts) - counts.begin());
  const auto rarest = static_cast<std::size_t>(std::ranges::max_element(weights) - weights.begin());
  config.data.info.contents += fmt::format(
      "class weights: balanced, from {:.3g} ({}, {} samples) to {:.3g} ({}, {})\n", weights[most],
      shown(names[most]), counts[most], weights[rarest], shown(names[rarest]), counts[rarest]);
}

void check_data_size(const TrainConfig& config, const std::string& source, const RankLayout& site) {
  const auto refuse = [&]<class... Args>(const std::string& key, fmt::format_string<Args...> text,
                                         Args&&... args) {
    fail(ExitCode::kUsage, "config", {.file = source, .key = key}, text,
         std::forward<Args>(args)...);
  };
  const std::int64_t samples = config.data.info.train_samples;
  const std::string ranks = counted(site.ranks, "rank"), all = counted(samples, "training sample");
  if (samples < site.ranks)
    refuse("data", "has {} for {}; start fewer ranks, or give more", all, ranks);
  if (config.state.early_stopping && config.data.info.test_samples == 0)
    refuse("early_stopping", "goes by tests, and the data set has no test samples; leave it out");
  if (config.state.checkpoint.best && config.data.info.test_samples == 0)
    refuse("checkpoint.best", "goes by tests, and the data set has no test samples; leave it out");
  if (config.length.batch_size * site.ranks > samples)
    refuse("batch_size",
           "{0} on {1} is more than the {2}; allowed: <= {3}, as by --set batch_size={3}",
           config.length.batch_size, ranks, all, samples / site.ranks);
  const std::int64_t batches =
      samples / site.replicas().ranks / (config.length.batch_size * site.replica);
  if (config.length.accumulate > batches)
    refuse("accumulate", "{} is more than the {} of an epoch; allowed: <= {}",
           config.length.accumulate, counted(batches, "batch"), batches);
  constexpr double kMostSteps = 1e12;
  const std::int64_t updates = batches / config.length.accumulate;
  const double all_updates = config.length.epochs * static_cast<double>(updates);
  if (config.length.steps <= 0 && all_updates > kMostSteps)
    refuse("epochs", "are {:.3g} updates; allowed: <= {:.0e}", all_updates, kMostSteps);
  const RunLength length = run_length(config, site);
  const std::int64_t steps = length.total_steps;
  for (const auto& [key, every] :
       {std::pair("lookahead.every", config.state.lookahead ? config.state.lookahead->every : 0),
        std::pair("ema.every", config.state.ema ? config.state.ema->every : 0),
        std::pair("sync.verify", config.sync.verify_every)}) {
    if (every > steps)
      refuse(key, "is {}, but the run has {} steps; allowed: <= {}", every, steps, steps);
  }
  const std::string what = config.sync.later.empty() ? "the run" : "its part of the run";
  const auto check_steps = [&](const AlgorithmPlan& plan, const std::string& path,
                               std::int64_t of) {
    for (const StepKey& key : plan.steps.keys) {
      const std::string name = path + ".algorithm." + key.key;
      const std::int64_t most = key.period && !key.used_next ? of - key.after : of - 1;
      // A key that leaves no steps is told by itself.
      if (key.steps == 0 || key.steps <= most || most < 1) continue;
      if (key.unit > 1 || key.used_next)
        refuse(name, "is {}{}, but {} has {} steps{}; allowed: <= {}", key.steps / key.unit,
               key.unit > 1 ? fmt::format(" exchanges of {} steps", key.unit) : "", what, of,
               key.used_next ? ", and what an exchange brings is used in the step after it" : "",
               most / key.unit);
      if (key.period && key.after > 0)
        refuse(name, "is {}, but {} has {} from step {} on; allowed: <= {}", key.steps, what,
               counted(most, "step"), key.after, most);
      refuse(name, "is {}, but {} has {} steps; allowed: <= {}", key.steps, what, of, most);
    }
  };
  if (const AlgorithmEquality& equality = config.sync.algorithm.equality;
      config.sync.verify_every > 0 && equality.after && equality.equal_states == 0) {
    bool any = false;
    for (std::int64_t t = config.sync.verify_every; !any && t <= steps;
         t += config.sync.verify_every)
      any = equality.after(t, 0, 1);
    if (!any)
      refuse("sync.verify",
             "is {}, but after none of the run's {} that it divides have ranks just met; "
             "allowed: the period of sync.algorithm, or 1",
             config.sync.verify_every, counted(steps, "step"));
  }
  std::int64_t last = 0;
  for (std::size_t k = 0; k < config.sync.phases(); ++k) {
    const bool more = k + 1 < config.sync.phases();
    const std::int64_t next = more ? config.sync.phase(k + 1).first_step(length) : steps;
    if (more && (next <= last || next >= steps))
      refuse(SyncSettings::key(k + 1),
             "begins at step {}, but the one before at step {}, and the run has {}; allowed: "
             "ascending steps below that",
             next, last, steps);
    check_steps(config.sync.phase(k).algorithm, SyncSettings::key(k), next - last);
    last = next;
  }
}

void apply_settings(nlohmann::json& config, const std::vector<std::string>& settings) {
  bool steps = false, epochs = false;
  for (const std::string& setting : settings) {
    steps |= setting.starts_with("steps=");
    epochs |= setting.starts_with("epochs=");
  }
  if (config.is_object() && steps != epochs) config.erase(steps ? "epochs" : "steps");
  for (const std::string& setting : settings) {
    for (const auto& [section, key] : {std::pair("sync", "algorithm"),
                                       {"sync", "transport"},
                                       {"data", "sampler"},
                                       {"data", "cache"}}) {
      const nlohmann::json::json_pointer place(fmt::format("/{}/{}", section, key));
      const bool inside = setting.starts_with(fmt::format("{}.{}.", section, key)) &&
                          config.is_object() && config.contains(place);
      // A text stands for an object of that type.
      if (inside && config[place].is_string()) config[place] = {{"type", config[place]}};
    }
    if (setting.starts_with("init.") && config.is_object() &&
        config.value("init", nlohmann::json()).is_string())
      config["init"] = {{"file", config["init"]}};  // a text is its file
    apply_setting(config, setting);
  }
}

}  // namespace starling
