#include "apps/trainer/config/train_config.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "apps/inference/plugins.h"
#include "apps/trainer/config/plugins.h"
#include "apps/trainer/config/recipe.h"
#include "apps/trainer/data/image_collate.h"
#include "apps/trainer/device/device.h"
#include "apps/trainer/device/step_graphs.h"
#include "apps/trainer/tasks/metric.h"
#include "apps/trainer/verify.h"
#include "comm/growth.h"
#include "core/config_doc.h"
#include "core/error.h"
#include "core/others_keys.h"
#include "kernels/gpu_update.h"

namespace starling {

namespace {

Interval read_interval(ConfigSection& section, const std::string& what) {
  Interval interval;
  const bool steps_alone = section.has("every_steps") && !section.has("every_epochs");
  interval.every_epochs = section.integer("every_epochs", 1, Range::at_least(0),
                                          what + " every so many epochs; 0: never");
  interval.every_steps = section.integer(
      "every_steps", 0, Range::at_least(0),
      what + " every so many steps; 0: never; given alone, it replaces the default `every_epochs`");
  if (steps_alone) {
    interval.every_epochs = 0;
    section.resolve("every_epochs", 0);
  }
  return interval;
}

void read_sampler(ConfigSection& sampler, TrainConfig& config) {
  const std::string type = sampler.text(
      "type", "shuffle",
      "shuffle: each epoch's order dealt to the ranks in turn; others see `--list samplers`");
  if (sampler.describing()) return;
  config.sampler = samplers().make(type, sampler.path("type"), sampler);
  sampler.finish();
}

/// Checks the sampler, once the data set is known.
void check_sampler(const ConfigSection& data, const std::string& data_type,
                   const std::string& sampler_type, const TrainConfig& config) {
  if (config.dirichlet_alpha > 0.0 && !config.sampler->takes_partition()) {
    data.error("sampler.type",
               "is {}, which deals samples to all ranks, but data.partition.type is dirichlet; "
               "allowed: shuffle",
               sampler_type);
  }
  if (config.sampler->complexity() == Sampler::Complexity::kDeclared &&
      config.data.complexity.empty()) {
    data.error("sampler.complexity",
               "is declared, but the samples of {} say no cost; allowed: measured, or \"sampler\": "
               "\"shuffle\", which needs none",
               data_type);
  }
}

void read_cache(ConfigSection& section, TrainConfig& config, const RankLayout& site) {
  const bool on = section.choice("type", "none", {"none", "memory"},
                                 "memory: samples are kept as decoded, before augmentation, so "
                                 "that each is decoded once") == "memory";
  const double mebibytes =
      on || section.describing()
          ? section.number("limit_mib", 1024.0, Range::positive(),
                           "memory: MiB of samples a host, shared by its ranks; more are not kept")
          : 0.0;
  if (section.describing()) return;
  section.finish();
  if (!on) return;
  const ImageCollate& images = images_of(config.data);
  if (images.pictures &&
      (images.test_image || images.growth ||
       std::any_of(config.augment.begin(), config.augment.end(), [](const auto& augmenter) {
         return augmenter->part({}, {64, 64}).has_value();
       }))) {
    section.error("type",
                  "is memory, but pictures are cut anew in every epoch, or to another size later "
                  "or in tests; leave it out: the system keeps "
                  "the files in memory");
  }
  const CachePlan plan = plan_cache(config.data, mebibytes * kMebibyte, site.ranks_per_node);
  if (plan.places == 0) {
    const double needed = static_cast<double>(plan.sample_bytes) * site.ranks_per_node / kMebibyte;
    section.error("limit_mib",
                  "is {}, which is no sample for each of the {} ranks of a host; needed: >= {:.4g}",
                  mebibytes, site.ranks_per_node, std::ceil(needed * 1e3) * 1e-3);
  }
  auto cached = std::make_unique<CachedDataset>(std::move(config.dataset), mebibytes * kMebibyte);
  config.cache = cached.get();
  config.dataset = std::move(cached);
}

constexpr const char* kTaskDoc = "what is trained: tensors of a batch in, loss and metrics out";

void read_data(ConfigSection& root, TrainConfig& config, const RankLayout& site) {
  ConfigSection data = root.section("data", "the data set and how it is read");
  if (!root.has("data") && !root.describing())
    root.missing("data", R"(an object such as {"type": "synthetic"})");
  const std::string type = data.required_text("type", "the data set, see `--list data`");
  config.shuffle = data.boolean(
      "shuffle", true, "a new order of the training samples every epoch, the same on all ranks");
  ConfigSection sampler =
      data.section("sampler", "which rank takes which samples when; a text is its type", "type");
  read_sampler(sampler, config);
  ConfigSection augment = data.section("augment", "random changes of training images");
  if (root.describing()) {
    augment.choice("interpolation", "bilinear", interpolation_names(),
                   "filter that pictures and crops are resized with");
    read_augmenters(augment, {});
  }
  ConfigSection partition = data.section("partition", "how samples are spread over the ranks");
  if (partition.choice("type", "shared", {"shared", "dirichlet"},
                       "shared: all ranks draw from one shuffled order; dirichlet: a fixed "
                       "label-skewed share each") == "dirichlet" ||
      root.describing()) {
    config.dirichlet_alpha = partition.number("alpha", 1.0, Range::positive(),
                                              "dirichlet: the smaller, the more skewed");
  }
  partition.finish();
  ConfigSection cache =
      data.section("cache", "decoded samples that are kept; a text is its type", "type");
  config.data_threads =
      static_cast<int>(data.integer("threads", 0, Range::closed(0, 1024),
                                    "threads of each rank that read and decode samples; 0: the "
                                    "cores that computing leaves over, at least 1"));
  if (root.describing()) return read_cache(cache, config, site);
  config.dataset = datasets().make(type, data.path("type"), data, config.seed);
  data.finish();
  ConfigSection task = root.section("task", kTaskDoc);
  config.dataset->use_task(task.has("type") ? task.text("type", "", "") : "");
  config.data = config.dataset->info();
  if (config.data.find("image")) {
    config.dataset->set_interpolation(
        interpolation_of(augment.choice("interpolation", "bilinear", interpolation_names(),
                                        "filter that pictures and crops are resized with")));
    config.data = config.dataset->info();
  }
  const auto& tensors = config.data.tensors;
  const auto image = std::find_if(tensors.begin(), tensors.end(), [](const TensorInfo& tensor) {
    return tensor.pixels.has_value();
  });
  config.augment = read_augmenters(augment, image == tensors.end() ? Shape{} : image->shape);
  if (config.dirichlet_alpha > 0.0 && config.data.classes == 0) {
    data.error("partition.type",
               "is dirichlet, but the samples of {} have no class; allowed: shared", type);
  }
  check_sampler(data, type, sampler.resolved().value("type", ""), config);
  read_cache(cache, config, site);
}

/// Reads what the model is made for. Returns the names of the metrics, which need the model.
std::vector<std::string> read_task(ConfigSection& root, TrainConfig& config) {
  const bool describing = root.describing();
  ConfigSection task = root.section("task", kTaskDoc);
  const std::string type = task.text("type", describing ? "classification" : config.data.task,
                                     "see `--list tasks`; default: what the data set is for");
  if (!describing) config.task = tasks().make(type, task.path("type"), task, config.data);
  std::vector<std::string> names = task.texts(
      "metrics",
      describing ? std::vector<std::string>{"classification"} : config.task->usual_metrics(),
      "what tests measure, see `--list metrics`; default: the task's own");
  if (!describing) task.finish();
  return names;
}

void read_loss(ConfigSection& root, TrainConfig& config,
               const std::vector<std::string>& metric_names) {
  ConfigSection loss = root.section("loss", "what is minimised");
  const std::string type =
      loss.text("type", root.describing() ? "cross_entropy" : config.task->usual_loss(),
                "see `--list losses`; default: the task's own");
  if (root.describing()) return;
  config.task->set_loss(losses().make(type, loss.path("type"), loss));
  loss.finish();
  std::vector<std::unique_ptr<Metric>> chosen;
  for (const std::string& name : metric_names)
    chosen.push_back(
        metrics().make(name, root.path("task.metrics"), config.model->output_shape().back()));
  // Metrics of no samples say what their values will be called.
  std::map<std::string, std::string> givers;
  for (std::size_t m = 0; m < chosen.size(); ++m) {
    const std::string& name = metric_names[m];
    named("metric", name, [&] {
      const std::int64_t sums = chosen[m]->sums();
      if (sums < 0)
        fail(ExitCode::kUsage, "metric", {.key = name}, "it keeps {} sums; allowed: 0 or more",
             sums);
      const std::vector<double> none(static_cast<std::size_t>(sums), 0.0);
      for (const MetricValue& value : chosen[m]->values(none, 0.0)) {
        const auto [giver, added] = givers.emplace(value.name, name);
        if (!added || value.name.empty()) {
          root.error("task.metrics",
                     "{} and {} both give a number named '{}'; each needs a name of its own",
                     giver->second, name, value.name);
        }
      }
    });
  }
  config.task->set_metrics(std::move(chosen));
}

/// Reads how batches are mixed, once task, model and loss are known: what mixed batches need of
/// them.
void read_mixing(ConfigSection& root, TrainConfig& config) {
  const std::string key = mixing_key(config.augment);
  if (key.empty()) return;
  const std::string path = "data.augment." + key;
  const std::string target(config.task->shared_target());
  const TensorInfo* tensor = config.data.find(target);
  if (target.empty() || !tensor || tensor->dtype != DType::kInt32 || tensor->shape.rank() != 0) {
    root.error(
        path,
        "mixes classes, but the task has no one class for each image (task.type); leave it out");
  }
  if (!config.task->loss()->takes_shares()) {
    root.error(path,
               "makes targets that are shares of classes, which this loss does not take "
               "(loss.type); allowed with cross_entropy, "
               "bce_with_logits");
  }
  if (config.batch_size < 2)
    root.error("batch_size", "is {}, but {} mixes the images of a batch; needed: >= 2",
               config.batch_size, path);
  config.task->share_targets(config.model->output_shape().back());
}

void read_model(ConfigSection& root, TrainConfig& config) {
  ConfigSection model = root.section("model", "the network");
  if (root.describing()) {
    model.required_text("type", "the model, see `--list models`");
    model.integer("num_classes", 10, Range::closed(1, 1 << 24),
                  "outputs; default: the data's classes");
    return;
  }
  if (!root.has("model")) root.missing("model", R"(an object such as {"type": "resnet20"})");
  config.model = make_model(model, config.task->input(), config.task->outputs());
  config.task->check_model(*config.model, model);
  const ImageCollate& images = images_of(config.data);
  if (images.test_image) config.model->check_takes(*images.test_image);
  for (const std::int64_t side :
       images.growth ? images.growth->sides() : std::vector<std::int64_t>{}) {
    config.model->check_takes(Shape{side, side, 3});
  }
  if (config.model->parameters().empty())
    model.error("", "has no parameters, so there is nothing to train");
}

void read_length(ConfigSection& root, TrainConfig& config) {
  config.batch_size = root.integer("batch_size", 128, Range::closed(1, 1 << 24),
                                   "samples of one micro-batch on one rank");
  config.accumulate = root.integer("accumulate", 1, Range::closed(1, 1 << 20),
                                   "micro-batches whose gradients add up to one update");
  if (root.has("epochs") && root.has("steps"))
    root.error("steps", "is given together with epochs; allowed: one of them");
  if (!root.has("epochs") && !root.has("steps") && !root.describing())
    root.missing("epochs", "a number, or steps in its place", "steps");
  if (root.has("epochs") || root.describing())
    config.epochs = root.required_number("epochs", Range{0.0, 1e9, true, false},
                                         "length of the run in epochs; this or `steps`");
  if (config.epochs == std::floor(config.epochs) && config.epochs > 0.0)
    root.resolve("epochs", static_cast<std::int64_t>(config.epochs));
  if (root.has("steps") || root.describing()) {
    config.steps = root.required_integer("steps", Range::closed(1, 1e12),
                                         "length of the run in updates, instead of `epochs`");
  }
}

/// Reads groups of parameters, after the rule's own keys, which a group's rule has too.
void read_groups(ConfigSection& optimizer, TrainConfig& config, const std::string& type) {
  nlohmann::json keys = optimizer.resolved();
  for (const char* key : {"type", "lr", "decay"}) keys.erase(key);
  const char* doc =
      "[{\"match\", \"lr_scale\", \"until_epoch\", \"weight_decay\", …}, …]: parameters whose "
      "names a regular expression finds, with keys "
      "of "
      "the optimizer that differ for them; the first that does wins; after until_epoch they stay "
      "as they are";
  for (ConfigSection& given : optimizer.sections("groups", false, doc)) {
    ParameterGroup group;
    const std::string match = given.required_text(
        "match", "regular expression, found anywhere in a parameter's name: bn|bias");
    try {
      group.match = std::regex(match, std::regex::ECMAScript);
    } catch (const std::regex_error& error) {
      given.error("match", "'{}' is no regular expression ({}); e.g. bn|bias, ^conv1", match,
                  error.what());
    }
    group.lr_scale =
        given.number("lr_scale", 1.0, Range::at_least(0.0), "factor on the learning rate");
    if (given.has("until_epoch")) {
      group.until_epoch = given.number("until_epoch", 0.0, Range::at_least(0.0),
                                       "from there on these parameters stay as they are; 0: never");
    } else {
      given.raw("until_epoch", "number", "");  // checkpoints of before this key have none
    }
    if (group.until_epoch > 0.0 && config.rule->facts().needs_constant_rate)
      given.error("until_epoch", "is {}, but {} needs one rate in all steps; leave it out",
                  group.until_epoch, type);
    nlohmann::json own = keys;
    group.own_decay = given.has("weight_decay");
    if (group.own_decay) {
      own["weight_decay"] = given.number("weight_decay", 0.0, Range::at_least(0.0),
                                         "of these parameters, whatever their shape");
    } else {
      // Without it, the optimizer's applies: the resolved config says null
      given.raw("weight_decay", "number", "");
    }
    for (const auto& [key, value] : keys.items()) {
      if (key != "weight_decay" && given.has(key)) own[key] = given.raw(key, "", "");
    }
    ConfigSection section(own, given.path());
    group.rule = optimizers().make(type, optimizer.path("type"), section);
    refuse_others_keys(optimizers(), given, type);
    given.finish();
    if (group.rule->facts().states != config.rule->facts().states ||
        group.rule->facts().phases != config.rule->facts().phases ||
        group.rule->facts().corrects_noise != config.rule->facts().corrects_noise ||
        group.rule->facts().evaluated.weight != config.rule->facts().evaluated.weight) {
      given.error("match",
                  "'{}' changes which tensors the optimizer keeps, at which steps, or what of them "
                  "is tested; allowed: keys that change none of it",
                  match);
    }
    const auto& parameters = config.model->parameters();
    const auto found = [&](const Parameter* parameter) {
      return std::regex_search(parameter->name, group.match);
    };
    if (std::none_of(parameters.begin(), parameters.end(), found)) {
      given.error("match", "'{}' is in the name of no parameter; names are {}, …, {}", match,
                  parameters.front()->name, parameters.back()->name);
    }
    config.groups.push_back(std::move(group));
  }
}

/// Checkpoints tell states apart by their names.
void check_states(const ConfigSection& optimizer, const OptimizerRule& rule,
                  const std::string& type) {
  constexpr std::size_t kMost = 4;
  std::vector<std::string> names = rule.facts().states;
  if (names.size() > kMost)
    optimizer.error("type", "{} keeps {} states; allowed: {}", type, names.size(), kMost);
  std::sort(names.begin(), names.end());
  const bool twice = std::adjacent_find(names.begin(), names.end()) != names.end();
  if (twice || (!names.empty() && names.front().empty()))
    optimizer.error("type", "{} keeps states {}; each needs a name of its own", type,
                    fmt::format("'{}'", fmt::join(names, "', '")));
}

void read_optimizer(ConfigSection& root, TrainConfig& config, const RankLayout& site) {
  ConfigSection optimizer = root.section("optimizer", "the rule of the update");
  const std::string type = config.optimizer =
      optimizer.text("type", "sgd", "the rule, see `--list optimizers`");
  config.lr = optimizer.number("lr", optimizers().rate(type), Range::at_least(0.0),
                               "base learning rate; " + optimizers().rates());
  config.decay_all =
      optimizer.choice("decay", "weights", {"weights", "all"},
                       "weight decay on tensors of two or more dimensions only, or on all") ==
      "all";
  if (!root.describing()) config.rule = optimizers().make(type, optimizer.path("type"), optimizer);
  read_groups(optimizer, config, type);
  if (!root.describing()) {
    refuse_others_keys(optimizers(), optimizer, type);
    optimizer.finish();
  }
  if (config.rule) check_states(optimizer, *config.rule, type);
  if (config.rule) config.rule->know_ranks(site.ranks);
  for (const ParameterGroup& group : config.groups) group.rule->know_ranks(site.ranks);
  if (config.rule && config.device == "cuda") require_gpu_update(*config.rule, type);

  ConfigSection schedule = root.section("schedule", "how the learning rate changes");
  const std::string schedule_type =
      schedule.text("type", "constant", "the schedule, see `--list schedules`");
  if (root.describing()) return;
  const ScheduleInputs probe{config.lr, 1, 1.0};
  schedules().make(schedule_type, schedule.path("type"), schedule, probe);
  schedule.finish();
  if (config.rule->facts().needs_constant_rate) {
    if (schedule_type != "constant") {
      schedule.error("type",
                     "is {}, but {} averages its steps instead, all at one rate; allowed: constant",
                     schedule_type, type);
    }
    if (const auto steps = schedule.resolved().value<std::int64_t>("warmup_steps", 0); steps != 0) {
      schedule.error(
          "warmup_steps",
          "is {}, but {} must know how it warms up; allowed: 0, and optimizer.warmup_steps", steps,
          type);
    }
  }
  // The schedule is made anew once the run's length is known; the section is the resolved one, so
  // nothing can fail then.
  config.make_schedule = [resolved = schedule.resolved(),
                          schedule_type](const ScheduleInputs& inputs) {
    ConfigSection section(resolved, "schedule");
    section.text("type", "constant", "");
    return schedules().make(schedule_type, "schedule.type", section, inputs);
  };
}

std::string standard_topology(const AlgorithmPlan& plan) {
  return plan.needs.default_topology.empty() ? "base-2" : plan.needs.default_topology;
}

/// Refuses what the algorithm says it does not go with. `sync` is the section that has the
/// algorithm: the whole run's, or that of a switch.
void check_algorithm(const ConfigSection& sync, const AlgorithmPlan& plan,
                     const TrainConfig& config, const RankLayout& site) {
  const auto& fit = plan.needs.optimizers;
  if (!fit.empty() && std::find(fit.begin(), fit.end(), config.optimizer) == fit.end()) {
    sync.error("algorithm", "{} does not go with the optimizer {}; allowed: {}", plan.label(),
               config.optimizer, fmt::join(fit, ", "));
  }
  if (!fit.empty() && !config.groups.empty()) {
    sync.error("algorithm",
               "{} has the optimizer's formulas in its own, for all parameters alike; allowed: no "
               "optimizer.groups",
               plan.label());
  }
  if (plan.equality.means_before > 0 && config.rule->facts().corrects_noise) {
    sync.error("algorithm",
               "{} gives the optimizer means over the ranks, and optimizer.noise_correction is for "
               "a rank's own gradients; allowed: "
               "\"noise_correction\": 1, or gossip",
               plan.label());
  }
  if (plan.steps.asynchronous && config.deterministic) {
    sync.error("algorithm",
               "{} adds a mean when it arrives, so no two runs give the same bits, and "
               "deterministic is true; allowed: \"deterministic\": false, "
               "or another algorithm",
               plan.label());
  }
  if (!plan.needs.fp16_fault.empty() && config.compute == DType::kFloat16) {
    sync.error("algorithm", "{} does not go with fp16: {}", plan.label(), plan.needs.fp16_fault);
  }
  if (const std::int64_t given = plan.needs.ranks_per_node; given > 0 && site.ranks % given != 0) {
    sync.error("algorithm.ranks_per_node", "is {} for {} ranks; allowed: what divides them", given,
               site.ranks);
  }
  if (plan.messages.mixes_states && config.rule->facts().states.empty()) {
    sync.error("algorithm",
               "{} mixes the optimizer's states too, and {} keeps none with these settings; "
               "allowed: \"mix_states\": 0",
               plan.label(), config.optimizer);
  }
  const std::string fault = plan.needs.rule_fault ? plan.needs.rule_fault(*config.rule) : "";
  if (!fault.empty())
    sync.error("algorithm", "{} does not go with this optimizer: {}", plan.label(), fault);
}

/// Refuses what keys of `sync` ask for and the run's algorithms do not have.
void check_exchanges(const ConfigSection& sync, const TrainConfig& config,
                     const std::string& exchange) {
  std::vector<const AlgorithmPlan*> plans{&config.algorithm};
  for (const SyncPhase& phase : config.phases) plans.push_back(&phase.algorithm);
  const auto any = [&](auto&& has) {
    return std::any_of(plans.begin(), plans.end(),
                       [&](const AlgorithmPlan* plan) { return has(*plan); });
  };
  if (config.mixer.encodes &&
      !any([](const AlgorithmPlan& plan) { return plan.messages.encoding.has_value(); })) {
    std::vector<std::string> others;
    for (const AlgorithmPlan& other : known_algorithms()) {
      if (other.messages.encoding) others.push_back(other.name);
    }
    sync.error(
        "exchange",
        "is {}, but {} exchanges in full precision; allowed: fp32, or one of these algorithms: {}",
        exchange, plans[0]->label(), fmt::join(others, ", "));
  }
  for (const AlgorithmPlan* plan : plans) {
    const std::string key = config.mixer.encodes || !plan->messages.encoding
                                ? ""
                                : plan->messages.encoding->key_of_codes();
    if (key.empty()) continue;
    sync.error(
        "exchange",
        "is {}, but sync.algorithm.{} is about numbers that are encoded; allowed: bf16, int8",
        exchange, key);
  }
  if (config.lr_scale != 1.0 &&
      !any([](const AlgorithmPlan& plan) { return !plan.equality.always(); })) {
    sync.error("lr_scale",
               "is {}, but {} averages the gradients of all ranks in every step; allowed: 1, or "
               "another optimizer.lr",
               config.lr_scale, plans[0]->label());
  }
  if (config.lr_scale != 1.0 && config.rule->facts().needs_constant_rate &&
      any([](const AlgorithmPlan& plan) { return plan.equality.means_before != 0; })) {
    sync.error("lr_scale",
               "is {} in some of the steps, but {} needs one rate in all; allowed: 1, or another "
               "optimizer.lr",
               config.lr_scale, config.optimizer);
  }
  if (config.auto_bucket && config.algorithm.cost.exchanges.empty()) {
    sync.error("bucket_mb", "is auto, but {} does not say what a step takes; allowed: a number",
               config.algorithm.label());
  }
}

/// Takes the topology's ranks per node, where the algorithm treats a node's ranks apart and its own
/// key does not say how many they are.
void take_ranks_per_node(AlgorithmPlan& plan, const nlohmann::json& topology,
                         const RankLayout& site, const ConfigSection& sync) {
  if (!plan.needs.by_nodes || plan.needs.ranks_per_node > 0 || !topology.is_object() ||
      !topology.contains("ranks_per_node"))
    return;
  const nlohmann::json& given = topology["ranks_per_node"];
  const std::int64_t count = given.is_number_integer() ? given.get<std::int64_t>() : 0;
  if (count < 1 || site.ranks % count != 0) {
    sync.error("topology.ranks_per_node",
               "is {} for {} ranks, and {} takes it; allowed: what divides them", given.dump(),
               site.ranks, plan.label());
  }
  plan.needs.ranks_per_node = count;
}

/// Makes and checks the topology of an algorithm that has one. `sync` has both.
std::unique_ptr<Topology> read_topology(const ConfigSection& sync, ConfigSection& topology,
                                        const AlgorithmPlan& plan, const TrainConfig& config,
                                        const RankLayout& site) {
  std::unique_ptr<Topology> made;
  try {
    made = make_topology(topology, site, plan.topology, standard_topology(plan));
  } catch (const Error& error) {
    if (!error.parts().where.key.empty()) throw;
    const std::string& remedy = error.parts().remedy;
    topology.error("type", "{}{}{}", error.parts().what, remedy.empty() ? "" : "; ", remedy);
  }
  const std::string name = topology.resolved().value("type", "");
  check_kind(*made, name, plan.topology, plan.label(), site, topology);
  check_growth(plan, *config.rule, config.optimizer, *made, name, site, sync);
  return made;
}

/// The phases after the first one, `sync.switch`. A topology that a phase does not give is that of
/// the one before.
void read_switch(ConfigSection& sync, TrainConfig& config, const RankLayout& site) {
  const char* doc =
      "[{\"step\" or \"epoch\", \"algorithm\", \"topology\"}, …]: from there on ranks agree in "
      "another way, after one mean of all";
  nlohmann::json before = config.resolved_topology;
  for (ConfigSection& given : sync.sections("switch", false, doc)) {
    SyncPhase phase;
    if (given.has("step") == given.has("epoch")) {
      for (const char* key : {"step", "epoch", "algorithm", "topology"}) given.raw(key, "", "");
      given.finish();  // a misspelt one first
      given.error("step", "or epoch must say when; give one of them");
    }
    if (given.has("step")) {
      phase.step =
          given.integer("step", 1, Range::closed(1, 1e12), "the first step of the new algorithm");
    } else {
      phase.epoch = given.number("epoch", 1.0, Range::positive(), "the same, in epochs");
    }
    if (!given.has("algorithm"))
      given.error("algorithm", "is missing; say what ranks do from there on");
    const AlgorithmPlan& last =
        config.phases.empty() ? config.algorithm : config.phases.back().algorithm;
    if (last.steps.restarts_updates) {
      given.error("algorithm",
                  "follows {} with states reset, whose optimizer counts its steps anew; allowed "
                  "there: states local or average",
                  last.label());
    }
    ConfigSection algorithm = given.section("algorithm", "", "type");
    phase.algorithm = read_algorithm(algorithm);
    check_algorithm(given, phase.algorithm, config, site);
    if (phase.algorithm.topology != TopologyKind::kNone) {
      if (given.has("topology") || before.is_null()) {
        ConfigSection topology = given.section("topology", "");
        if (topology.text("type", standard_topology(phase.algorithm), "") == "auto")
          topology.error("type", "is auto in a switch; allowed: a type");
        phase.topology = read_topology(given, topology, phase.algorithm, config, site);
        before = topology.resolved();
      } else {
        const std::string inherited = "the topology before";
        try {
          ConfigSection topology(before, inherited);
          phase.topology = read_topology(given, topology, phase.algorithm, config, site);
          before = topology.resolved();
        } catch (const Error& error) {
          if (error.parts().where.file != inherited) throw;
          const std::string& remedy = error.parts().remedy;
          given.error("topology",
                      "is not given, and the one before does not fit: {}; give one here{}",
                      error.parts().what, remedy.empty() ? "" : fmt::format(" ({})", remedy));
        }
      }
      phase.topology_name = before.value("type", "");
    } else {
      const nlohmann::json unused = given.raw("topology", "object", "");
      if (!unused.is_null()) before = unused;
    }
    take_ranks_per_node(phase.algorithm, before, site, given);
    given.finish();
    config.phases.push_back(std::move(phase));
  }
  if (!config.phases.empty() && (config.auto_topology || config.auto_bucket)) {
    sync.error("switch",
               "does not go with what is measured for the first algorithm alone; name a "
               "topology.type and a bucket_mb, or leave it out");
  }
}

void read_first_topology(ConfigSection& sync, TrainConfig& config, const RankLayout& site) {
  AlgorithmPlan& plan = config.algorithm;
  if (plan.topology == TopologyKind::kNone) {
    // The topology may still serve an algorithm of sync.switch, and its nodes this one.
    config.resolved_topology = sync.raw("topology", "object", "not used by this algorithm");
    take_ranks_per_node(plan, config.resolved_topology, site, sync);
    return;
  }
  ConfigSection topology = sync.section("topology", "who mixes with whom, see `--list topologies`");
  const std::string type = topology.text(
      "type", config.auto_algorithm ? "auto" : standard_topology(plan), "see `--list topologies`");
  config.auto_topology = type == "auto";
  if (config.auto_algorithm && !config.auto_topology) {
    topology.error("type",
                   "is {}, but sync.algorithm auto chooses the topology too; allowed: auto, or a "
                   "sync.algorithm",
                   type);
  }
  if (config.auto_topology) {
    if (plan.cost.exchanges.empty() || !plan.cost.disagreement) {
      topology.error("type", "is auto, but what {} costs in learning is not known; allowed: a type",
                     plan.label());
    }
    if (!plan.cost.near_all_reduce) {
      topology.error(
          "type",
          "is auto, which may choose all-reduce, but {} computes something else; allowed: a type",
          plan.label());
    }
    // It may choose all-reduce, whose gradients are means already.
    if (config.lr_scale != 1.0 || config.rule->facts().corrects_noise) {
      topology.error("type",
                     "is auto, which may choose all-reduce, but {} is for a rank's own gradients; "
                     "allowed: a type",
                     config.lr_scale != 1.0 ? "sync.lr_scale" : "optimizer.noise_correction");
    }
    topology.finish();
    config.topology_name = "auto";
    return;
  }
  config.topology = read_topology(sync, topology, plan, config, site);
  config.resolved_topology = topology.resolved();
  config.topology_name = config.resolved_topology.value("type", "");
  take_ranks_per_node(plan, config.resolved_topology, site, sync);
}

/// `auto`: gossip or all-reduce, whichever is expected to come to a loss sooner. The topology is
/// then chosen too.
AlgorithmPlan read_first_algorithm(ConfigSection& algorithm, TrainConfig& config) {
  if (algorithm.describing() ||
      algorithm.text("type", "gossip", "see `--list algorithms`") != "auto")
    return read_algorithm(algorithm);
  config.auto_algorithm = true;
  algorithm.finish();
  return algorithm_of(nullptr);
}

/// `sync.verify`: a word, or a number of steps.
void read_verify(ConfigSection& sync, TrainConfig& config, bool describing) {
  if (!describing && sync.has("verify") && sync.raw("verify", "text or number", "").is_number()) {
    config.verify_every = sync.integer("verify", 0, Range::closed(1, 1e9), "");
  } else {
    config.verify_checkpoints =
        sync.choice("verify", "off", {"off", "checkpoint"},
                    "ranks compare what must be equal between them, before each checkpoint, or, "
                    "for a number, every so many steps; where "
                    "something differs the run ends with status 3 and the odd rank's name") ==
        "checkpoint";
  }
  if (describing || (!config.verify_checkpoints && config.verify_every == 0)) return;
  if (const std::string why = why_not_verified(config.algorithm, config.mixer); !why.empty())
    sync.error("verify", "has nothing to compare: {}; allowed: off", why);
}

void read_sync(ConfigSection& root, TrainConfig& config, const RankLayout& site) {
  const double clip_norm =
      root.number("clip_norm", 0.0, Range::at_least(0.0), "largest gradient norm; 0: no clipping");
  config.clip = {clip_norm,
                 root.choice("clip", "global", {"global", "bucket"},
                             "the norm over all parameters, or over each bucket") == "bucket"};

  ConfigSection sync = root.section("sync", "how ranks agree");
  ConfigSection algorithm =
      sync.section("algorithm",
                   "who sends what when, and what it does to the update; a text is its type; auto: "
                   "gossip or allreduce, and the topology, by "
                   "measurement at the start",
                   "type");
  config.algorithm = read_first_algorithm(algorithm, config);
  ConfigSection transport =
      sync.section("transport",
                   "what carries exchanges; a text is its type. CPUs: mpi, or between ranks of one "
                   "host nothing (direct: they read each other's "
                   "parameters where they lie); auto is direct. GPUs: nccl, or staged (host memory "
                   "and MPI; mpi is the same); auto is nccl where every "
                   "rank has it and a GPU of its own, and between ranks of one host direct where "
                   "their GPUs reach each other's memory; direct asks for "
                   "that, and is an error where they do not",
                   "type");
  config.transport = read_transport(transport);
  if (transport.resolved().size() == 1) sync.resolve("transport", config.transport.name);
  if (!config.transport.between_cpus && config.device == "cpu") {
    sync.error("transport", "is {}, which is between GPUs; for device cpu: {}",
               config.transport.name, transports_between_cpus());
  }
  if (!config.transport.between_gpus && config.device == "cuda") {
    sync.error("transport", "is {}, which is between CPUs; for device cuda: auto",
               config.transport.name);
  }
  config.timeout_s = sync.number("timeout_s", 300.0, Range::closed(0.1, 1e7),
                                 "seconds after which a wait for other ranks is an error");
  config.heartbeat_s = sync.number("heartbeat_s", 5.0, Range::closed(0.5, 1e7),
                                   "seconds without a sign of life after which another host counts "
                                   "as lost; a rank of the same host does as "
                                   "soon as its process has ended");
  config.overlap =
      sync.boolean("overlap", true, "exchanges run during the next forward and backward pass");
  std::string word;
  const double bucket_mb = sync.number_or_word(
      "bucket_mb", 25.0, Range::positive(), {"auto"}, word,
      "MiB of parameters that close a bucket; auto: chosen by trial passes and measured exchanges");
  config.auto_bucket = word == "auto";
  config.bucket_bytes = kMebibyte * (config.auto_bucket ? 25.0 : bucket_mb);
  const std::string exchange =
      sync.choice("exchange", "fp32", mixers().names(),
                  "number format of gossip and qgm on the wire; bf16 halves the bytes, int8 "
                  "quarters them, and both "
                  "keep the ranks' mean to rounding (fp32 in a run in fp64: fp64)");
  config.mixer = mixers().make(exchange, "sync.exchange");
  std::string scale_word;
  config.lr_scale = sync.number_or_word(
      "lr_scale", 1.0, Range::positive(), {"sqrt_ranks"}, scale_word,
      "factor on the learning rate in steps whose gradient is a rank's own, not a mean over all");
  if (!scale_word.empty()) config.lr_scale = std::sqrt(static_cast<double>(site.ranks));
  if (!root.describing()) check_algorithm(sync, config.algorithm, config, site);
  read_verify(sync, config, root.describing());
  config.max_ctas = static_cast<int>(
      sync.integer("max_ctas", 0, Range::closed(0, 64),
                   "on GPUs: thread blocks that NCCL's kernels may take; 0: NCCL's choice"));

  const bool fp16 = config.compute == DType::kFloat16;  // its overflow check
  const bool needs_whole_gradient = fp16 || (clip_norm > 0.0 && !config.clip.per_bucket);
  const bool given = sync.has("update");
  const std::string update = sync.choice(
      "update", needs_whole_gradient ? "after_backward" : "in_backward",
      {"in_backward", "after_backward"},
      "update each bucket the moment its last gradient is ready, or all after the pass");
  if (given && update == "in_backward" && needs_whole_gradient) {
    if (fp16)
      sync.error("update",
                 "is in_backward, but precision fp16 checks the whole gradient for overflow; "
                 "allowed: after_backward");
    sync.error("update",
               "is in_backward, but clip_norm with \"clip\": \"global\" needs the whole gradient; "
               "allowed: after_backward, or \"clip\": "
               "\"bucket\"");
  }
  config.in_backward = update == "in_backward";

  if (!root.describing()) {
    read_first_topology(sync, config, site);
    read_switch(sync, config, site);
    read_batch_norm(sync, config, site.ranks);
    check_exchanges(sync, config, exchange);
    sync.finish();
  } else {
    sync.raw("switch", "list of objects",
             "[{step or epoch, algorithm, topology}, …]: from that step on ranks agree in another "
             "way; see docs/algorithms.md");
    read_batch_norm(sync, config, site.ranks);
    ConfigSection topology = sync.section("topology", "who mixes with whom");
    topology.text("type", "base-2",
                  "see `--list topologies`; `auto`: chosen by measurement at the start");
  }
}

/// A word or a boolean.
GraphChoice read_cuda_graphs(ConfigSection& root) {
  const std::string key = "cuda_graphs",
                    doc =
                        "on GPUs: whole steps are captured as CUDA graphs and replayed; auto: "
                        "where possible, otherwise one line says why "
                        "not; true: what is known beforehand to make it impossible is an error. No "
                        "effect on a CPU";
  if (!root.has(key)) {
    root.choice(key, "auto", {"auto", "true", "false"}, doc);
    return GraphChoice::kAuto;
  }
  const nlohmann::json graphs = root.raw(key, "`auto` or boolean", doc);
  if (graphs == true) return GraphChoice::kOn;
  if (graphs != false && graphs != "auto")
    root.error(key, "is {}; allowed: auto, true, false", graphs.dump());
  return graphs == false ? GraphChoice::kOff : GraphChoice::kAuto;
}

void read_elastic(ConfigSection& root, TrainConfig& config) {
  ConfigSection elastic = root.section(
      "elastic",
      "how a run goes on with another number of ranks: by --resume … --elastic, or by `survive`");
  config.elastic.keep_global_batch =
      elastic.choice("keep", "global_batch", {"global_batch", "rank_batch"},
                     "global_batch: the samples of an update, to the nearest number that the ranks "
                     "can share; rank_batch: `batch_size`, so "
                     "that fewer ranks make smaller updates, and more of them in an epoch") ==
      "global_batch";
  const std::string scaling =
      elastic.choice("lr_scaling", "linear", {"linear", "sqrt", "none"},
                     "with rank_batch: how the rate follows the samples of an update");
  if (!config.elastic.keep_global_batch)
    config.elastic.lr_power = scaling == "linear" ? 1.0 : scaling == "sqrt" ? 0.5 : 0.0;
  config.elastic.topology =
      elastic.text("topology", config.elastic.topology,
                   "in place of a sync.topology that cannot have so many ranks");
  config.elastic.survive = elastic.boolean(
      "survive", false,
      "after a lost rank the others go on in the same processes, from the newest checkpoint; needs "
      "Open MPI 5 under mpirun "
      "--with-ft ulfm, and CPUs; elsewhere a warning says so, and a lost rank ends the run");
  elastic.finish();
}

TrainConfig read_root(ConfigSection& root, const RankLayout& site) {
  TrainConfig config;
  load_plugins(root.texts(
      "plugins", {},
      "shared libraries to open first; they register layers, topologies, optimizers, …"));
  config.seed = static_cast<std::uint64_t>(
      root.integer("seed", 1, Range::closed(0, 9007199254740991.0), "of everything random"));
  config.device = root.choice("device", "auto", {"auto", "cpu", "cuda"},
                              "auto: GPUs if every rank of every host gets one, else the CPU");
  config.precision = root.choice("precision", "fp32", {"auto", "fp32", "fp64", "bf16", "fp16"},
                                 "number format of the computation; bf16 and fp16 keep fp32 "
                                 "masters of the parameters; auto: bf16 where "
                                 "the device is fast in it, else fp32; fp64 is for checks");
  config.dtype = config.precision == "fp64" ? DType::kFloat64 : DType::kFloat32;
  config.compute = expected_compute(config.precision, config.device);
  if (config.device == "cpu" && config.compute == DType::kFloat16)
    root.error("precision", "{}", fp16_needs_gpu());
  config.threads = static_cast<int>(
      root.integer("threads", 0, Range::closed(0, 4096),
                   "compute threads of a rank; 0: usable cores / ranks on the host"));
  config.deterministic =
      root.boolean("deterministic", true,
                   "only algorithms that give the same bits in every run; `async` needs false");
  config.tf32 = root.boolean("tf32", false, "on GPUs: fp32 matrix products may use TF32");
  config.cudnn_benchmark = root.boolean(
      "cudnn_benchmark", false, "on GPUs: time the candidate algorithms of each convolution");
  config.cuda_graphs = read_cuda_graphs(root);
  config.tensorboard = root.boolean("tensorboard", true, "write events for TensorBoard");
  config.allow_unused = root.choice("unused_parameters", "error", {"error", "allow"},
                                    "what a parameter without gradient is") == "allow";
  config.check_numbers = root.boolean("check_numbers", false,
                                      "ends with status 4 at the first parameter, output, loss or "
                                      "gradient that is not finite, by layer, "
                                      "rank and step; slow, as the host looks at all of them");
  config.trace = root.text("trace", "", "file for a timeline of all ranks, as `--trace`");
  config.flight_recorder = root.choice("flight_recorder", "on", {"on", "end", "off"},
                                       "on: each rank's last events are written when something "
                                       "goes wrong; end: also at the end of a run");
  read_initial_file(root, config);
  config.log_every =
      root.integer("log_every", 10, Range::closed(1, 1e9), "steps between lines of metrics.jsonl");

  read_data(root, config, site);
  const std::vector<std::string> metric_names = read_task(root, config);
  read_model(root, config);
  read_length(root, config);
  read_optimizer(root, config, site);
  if (config.model && config.device == "cuda") {
    if (const auto error = config.model->unsupported(config.compute, DeviceType::kCuda))
      throw Error(*error);
  }
  read_loss(root, config, metric_names);
  if (!root.describing()) read_mixing(root, config);
  read_average(root, config);
  read_sync(root, config, site);
  read_lookahead(root, config);
  if (config.cuda_graphs == GraphChoice::kOn && config.device == "cuda" && !root.describing()) {
    if (const std::string why = plan_graphs(config, site).why_not; !why.empty())
      root.error("cuda_graphs", "is true, but {}; allowed here: auto, false", why);
  }
  read_elastic(root, config);
  ConfigSection evaluate =
      root.section("evaluate", "tests of the mean model; one more comes at the end");
  config.evaluate = read_interval(evaluate, "test");
  read_views(evaluate, config);
  evaluate.finish();
  ConfigSection checkpoint =
      root.section("checkpoint", "saved states of the run; one more comes at the end");
  config.checkpoint = read_interval(checkpoint, "save");
  config.keep = static_cast<int>(
      checkpoint.integer("keep", 2, Range::closed(1, 1e6), "newest checkpoints that are kept"));
  config.keep_best =
      checkpoint.boolean("best", false, "keeps checkpoints/best too, the one that tested best");
  checkpoint.finish();
  root.finish();
  return config;
}

/// The keys of every type of one kind, a table each.
template <class R, class... Args>
std::string describe_types(const R& registry, const std::string& heading, const std::string& prefix,
                           Args&&... args) {
  std::string text = "# " + heading + "\n\n";
  for (const std::string& name : registry.names()) {
    ConfigSection section = ConfigSection::describe();
    try {
      registry.make(name, prefix, section, args...);
    } catch (const Error&) {
      // A maker may refuse the placeholders of required keys; by then it has declared them.
    }
    const std::vector<ConfigKey> keys = section.declared();
    const std::string& summary = registry.summary(name);
    const std::string head = summary.empty() ? name : fmt::format("{}\n\n{}.", name, summary);
    text += keys.empty() ? fmt::format("## {}{}No keys of its own.\n\n", head,
                                       summary.empty() ? "\n\n" : " ")
                         : config_markdown(head, keys) + "\n";
  }
  return text;
}

}  // namespace

std::size_t TrainConfig::group_of(const Parameter& parameter) const {
  for (std::size_t k = 0; k < groups.size(); ++k) {
    if (std::regex_search(parameter.name, groups[k].match)) return k + 1;
  }
  return 0;
}

const OptimizerRule& TrainConfig::rule_of(const Parameter& parameter) const {
  const std::size_t group = group_of(parameter);
  return group == 0 ? *rule : *groups[group - 1].rule;
}

TrainConfig read_train_config(const nlohmann::json& given, const std::string& source,
                              const RankLayout& site, bool check_size) {
  ConfigSection root(given, source);
  TrainConfig config;
  try {
    config = read_root(root, site);
  } catch (const Error& error) {  // a registry knows the key of an unknown name, not the file
    ErrorParts parts = error.parts();
    if (parts.component != "config" || parts.where.key.empty() || !parts.where.file.empty()) throw;
    parts.where.file = source;
    throw Error(error.code(), parts);
  }
  config.source = source;
  config.resolved = root.resolved();
  config.written = given;
  if (check_size) check_data_size(config, source, site);
  return config;
}

std::string describe_config() {
  ConfigSection root = ConfigSection::describe();
  read_root(root, {});
  std::string text =
      "# Config keys\n\nWritten by `starling-train --describe-config` from the declarations that "
      "read a config; do not edit.\n"
      "Keys of a `type` stand in the table of that type below.\n\n";
  text += config_markdown("The config", root.declared()) + "\n";
  text += describe_types(datasets(), "Data (`data.type`)", "data.type", std::uint64_t{1});
  text += describe_types(samplers(), "Samplers (`data.sampler.type`)", "data.sampler.type");
  text += describe_types(models(), "Models (`model.type`)", "model.type", ModelOutputs{});
  text += describe_types(layers(), "Layers (`type` in `layers` of a `sequential` model)", "type");
  text += describe_types(losses(), "Losses (`loss.type`)", "loss.type");
  text += describe_types(optimizers(), "Optimizers (`optimizer.type`)", "optimizer.type");
  text +=
      describe_types(schedules(), "Schedules (`schedule.type`)", "schedule.type", ScheduleInputs{});
  text += describe_types(algorithms(), "Algorithms (`sync.algorithm.type`)", "sync.algorithm.type");
  text += describe_types(transports(), "Transports (`sync.transport.type`)", "sync.transport.type");
  text += describe_types(topologies(), "Topologies (`sync.topology.type`)", "sync.topology.type",
                         RankLayout{8, 2});
  while (text.size() >= 2 && text[text.size() - 1] == '\n' && text[text.size() - 2] == '\n')
    text.pop_back();
  return text;
}

ShapeTrace trace_shapes(const TrainConfig& config) {
  ShapeTrace trace =
      trace_shapes(*config.task, *config.model, config.pass_shape(), config.allow_unused);
  const auto buckets = static_cast<std::int64_t>(
      plan_buckets(trace.ready_order, trace.unused, config.dtype, config.bucket_bytes)
          .buckets.size());
  const auto check = [&](const AlgorithmPlan& plan, const std::string& path) {
    const AlgorithmNeeds::LeastBuckets& least = plan.needs.least_buckets;
    if (least.count <= buckets) return;
    fail(ExitCode::kUsage, "config",
         {.file = config.source, .key = path + ".algorithm." + least.key},
         "is {}, but the model has {} bucket{}; allowed: <= {}, or a smaller sync.bucket_mb",
         least.count, buckets, buckets == 1 ? "" : "s", buckets);
  };
  check(config.algorithm, "sync");
  for (std::size_t k = 0; k < config.phases.size(); ++k)
    check(config.phases[k].algorithm, fmt::format("sync.switch[{}]", k));
  return trace;
}

void check_data_size(const TrainConfig& config, const std::string& source, const RankLayout& site) {
  const std::int64_t samples = config.data.train_samples;
  if (samples < site.ranks) {
    fail(ExitCode::kUsage, "config", {.file = source, .key = "data"},
         "has {} training samples for {} ranks; start fewer ranks, or give more", samples,
         site.ranks);
  }
  if (config.batch_size * site.ranks > samples) {
    fail(ExitCode::kUsage, "config", {.file = source, .key = "batch_size"},
         "{0} on {1} ranks is more than the {2} training samples; allowed: <= {3}, as by --set "
         "batch_size={3}",
         config.batch_size, site.ranks, samples, samples / site.ranks);
  }
  const std::int64_t batches = samples / site.ranks / config.batch_size;
  if (config.accumulate > batches) {
    fail(ExitCode::kUsage, "config", {.file = source, .key = "accumulate"},
         "{} is more than the {} batches of an epoch; allowed: <= {}", config.accumulate, batches,
         batches);
  }
  const std::int64_t steps = run_length(config, site).total_steps;
  const auto check_steps = [&](const AlgorithmPlan& plan, const std::string& path,
                               std::int64_t of) {
    for (const StepKey& key : plan.steps.keys) {
      const std::string name = path + ".algorithm." + key.key,
                        what = config.phases.empty() ? "the run" : "its part of the run";
      const std::int64_t most = key.period && !key.used_next ? of - key.after : of - 1;
      // A key that leaves no steps is told by itself.
      if (key.steps == 0 || key.steps <= most || most < 1) continue;
      if (key.unit > 1 || key.used_next) {
        const std::string apart =
            key.unit > 1 ? fmt::format(" exchanges of {} steps", key.unit) : "";
        fail(ExitCode::kUsage, "config", {.file = source, .key = name},
             "is {}{}, but {} has {} steps{}; allowed: <= {}", key.steps / key.unit, apart, what,
             of, key.used_next ? ", and what an exchange brings is used in the step after it" : "",
             most / key.unit);
      }
      if (key.period && key.after > 0) {
        fail(ExitCode::kUsage, "config", {.file = source, .key = name},
             "is {}, but {} has {} steps from step {} on; allowed: <= {}", key.steps, what, most,
             key.after, most);
      }
      fail(ExitCode::kUsage, "config", {.file = source, .key = name},
           "is {}, but {} has {} steps; allowed: <= {}", key.steps, what, of, most);
    }
  };
  if (const AlgorithmEquality& equality = config.algorithm.equality;
      config.verify_every > 0 && equality.after && equality.kept == 0) {
    bool any = false;
    for (std::int64_t t = config.verify_every; !any && t <= steps; t += config.verify_every)
      any = equality.after(t, 0, 1);
    if (!any) {
      fail(ExitCode::kUsage, "config", {.file = source, .key = "sync.verify"},
           "is {}, but after none of the run's {} steps that it divides have ranks just met; "
           "allowed: the period of sync.algorithm, or 1",
           config.verify_every, steps);
    }
  }
  std::int64_t last = 0;
  for (std::size_t k = 0; k <= config.phases.size(); ++k) {
    const bool more = k < config.phases.size();
    const std::int64_t next = more ? config.phases[k].first_step(run_length(config, site)) : steps;
    if (more && (next <= last || next >= steps)) {
      fail(ExitCode::kUsage, "config", {.file = source, .key = fmt::format("sync.switch[{}]", k)},
           "begins at step {}, but the one before at step {}, and the run has {}; allowed: "
           "ascending steps below that",
           next, last, steps);
    }
    check_steps(k == 0 ? config.algorithm : config.phases[k - 1].algorithm,
                k == 0 ? "sync" : fmt::format("sync.switch[{}]", k - 1), next - last);
    last = next;
  }
}

std::int64_t SyncPhase::first_step(const RunLength& length) const {
  return epoch > 0.0 ? length.step_of_epoch(epoch) : step;
}

bool Interval::due(std::int64_t step, const RunLength& length) const {
  if (every_steps > 0 && step % every_steps == 0) return true;
  const std::int64_t epochs = every_epochs > 0 ? length.whole_epochs(step) : 0;
  return epochs > 0 && epochs % every_epochs == 0;
}

std::int64_t Interval::first_due(std::int64_t step, const RunLength& length) const {
  std::int64_t first = INT64_MAX;
  if (every_steps > 0) first = step / every_steps * every_steps + every_steps;
  if (every_epochs > 0) {
    const std::int64_t next = length.place(step).epoch / every_epochs * every_epochs + every_epochs;
    first = std::min(first, length.step_of_epoch(static_cast<double>(next)));
  }
  return first;
}

void apply_settings(nlohmann::json& config, const std::vector<std::string>& settings) {
  bool steps = false, epochs = false;
  for (const std::string& setting : settings) {
    steps |= setting.rfind("steps=", 0) == 0;
    epochs |= setting.rfind("epochs=", 0) == 0;
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
