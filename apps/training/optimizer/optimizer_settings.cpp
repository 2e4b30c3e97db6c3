#include "apps/training/optimizer/optimizer_settings.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "apps/inference/adapter.h"
#include "core/error.h"
#include "core/typed_section.h"
#include "kernels/gpu_update.h"
#include "layers/language_model.h"

namespace starling {
namespace {

std::regex read_pattern(const ConfigSection& section, const std::string& key,
                        const std::string& pattern) {
  try {
    return std::regex(pattern, std::regex::ECMAScript);
  } catch (const std::regex_error& error) {
    section.error(key, "'{}' is no regular expression ({}); e.g. bn|bias, ^conv1", pattern,
                  error.what());
  }
}

void check_match(const ConfigSection& section, const std::string& key, const std::string& pattern,
                 const std::regex& match, const Model& model) {
  const auto& parameters = model.parameters();
  if (std::ranges::none_of(parameters, [&](const Parameter* parameter) {
        return std::regex_search(parameter->name, match);
      })) {
    section.error(key, "'{}' is in the name of no parameter; names are {}, …, {}", pattern,
                  parameters.front()->name, parameters.back()->name);
  }
}

/// Calls visit(parameter) for those whose names one of the patterns finds.
template <class Visit>
void each_match(const ConfigSection& section, const char* key,
                const std::vector<std::string>& patterns, const Model& model, const Visit& visit) {
  for (const std::string& pattern : patterns) {
    const std::regex match = read_pattern(section, key, pattern);
    check_match(section, key, pattern, match, model);
    for (Parameter* parameter : model.parameters()) {
      if (std::regex_search(parameter->name, match)) visit(*parameter);
    }
  }
}

/// Takes parameters out of training.
void read_frozen(ConfigSection& optimizer, const Model& model) {
  const auto patterns = optimizer.texts(
      "freeze", {},
      "regular expressions: parameters whose names one finds keep their values; batch norms "
      "whose weight and bias do keep their statistics too, and normalise by them");
  each_match(optimizer, "freeze", patterns, model,
             [](Parameter& parameter) { parameter.trainable = false; });
}

/// The layers that adapters are added to.
std::vector<Linear*> adapted_layers(const ConfigSection& lora,
                                    const std::vector<std::string>& targets, Model& model) {
  const char* key = "targets";
  LanguageModel* const text = model.language_model();
  std::vector<Linear*> linear, chosen;
  std::vector<std::string> blocks, others;
  std::string head;
  model.for_each([&](Layer& layer) {
    auto* const one = dynamic_cast<Linear*>(&layer);
    if (one && text && &one->weight() == &text->head()) {
      head = layer.name();
    } else if (one) {
      linear.push_back(one);
    } else if (!layer.name().empty()) {
      others.push_back(layer.name());
    }
    if (layer.is_block()) blocks.push_back(layer.name() + ".");
  });
  if (linear.empty())
    lora.error("", "adds to linear layers, and this model has none; leave it out");
  const std::string known = linear.size() == 1
                                ? linear[0]->name()
                                : linear.front()->name() + ", …, " + linear.back()->name();
  if (targets.empty()) {
    for (Linear* layer : linear) {
      if (std::ranges::any_of(
              blocks, [&](const std::string& block) { return layer->name().starts_with(block); }))
        chosen.push_back(layer);
    }
    if (chosen.empty())
      lora.error(key, "is needed, since this model has no blocks; its linear layers are {}", known);
    return chosen;
  }
  for (const std::string& pattern : targets) {
    const std::regex match = read_pattern(lora, key, pattern);
    const auto found = [&](const std::string& name) { return std::regex_search(name, match); };
    const std::size_t before = chosen.size();
    for (Linear* layer : linear) {
      if (found(layer->name()) && std::ranges::find(chosen, layer) == chosen.end())
        chosen.push_back(layer);
    }
    if (chosen.size() > before ||
        std::ranges::any_of(linear, [&](const Linear* layer) { return found(layer->name()); }))
      continue;
    if (!head.empty() && found(head))
      lora.error(key,
                 "'{}' finds the head, {}, whose product is a part of the loss and takes no "
                 "adapter; name {}.weight in lora.train",
                 pattern, head, head);
    const auto other = std::ranges::find_if(others, found);
    if (other != others.end())
      lora.error(key, "'{}' finds {}, which is no linear layer; those are {}", pattern, *other,
                 known);
    lora.error(key, "'{}' is in the name of no layer; linear layers are {}", pattern, known);
  }
  return chosen;
}

/// Reads groups of parameters, after the rule's own keys, which a group's rule has too.
void read_groups(ConfigSection& optimizer, const Model& model, OptimizerSettings& settings) {
  const std::string& type = settings.type;
  nlohmann::json keys = optimizer.resolved();
  for (const char* key : {"type", "lr", "decay"}) keys.erase(key);
  const char* doc =
      "[{\"match\", \"lr_scale\", \"until_epoch\", \"weight_decay\", …}, …]: parameters whose "
      "names a regular expression finds, with keys of the optimizer that differ for them; the "
      "first that does wins; after until_epoch they stay as they are";
  for (ConfigSection& given : optimizer.sections("groups", false, doc)) {
    ParameterGroup group;
    const std::string match = given.required_text(
        "match", "regular expression, found anywhere in a parameter's name: bn|bias");
    group.name = match;
    group.match = read_pattern(given, "match", match);
    given.read("lr_scale", group.lr_scale, Range::at_least(0.0), "factor on the learning rate");
    // Checkpoints of before this key have none, so the resolved config has it where it is given
    group.until_epoch =
        given
            .number_if_given("until_epoch", Range::at_least(0.0),
                             "from there on these parameters stay as they are; 0: never")
            .value_or(group.until_epoch);
    if (group.until_epoch > 0.0 && settings.rule->facts().needs_constant_rate)
      given.error("until_epoch", "is {}, but {} needs one rate in all steps; leave it out",
                  group.until_epoch, type);
    nlohmann::json own = keys;
    const std::optional<double> own_decay = given.number_if_given(
        "weight_decay", Range::at_least(0.0), "of these parameters, whatever their shape");
    group.own_decay = own_decay.has_value();
    if (own_decay) own["weight_decay"] = *own_decay;
    for (const auto& [key, value] : keys.items()) {
      if (key == "weight_decay") continue;
      if (const nlohmann::json other = given.raw(key, "", ""); !other.is_null()) own[key] = other;
    }
    ConfigSection section(own, given.path());
    group.rule = optimizers().make(type, optimizer.path("type"), section);
    know_types(optimizers(), type, given);
    given.finish();
    if (group.rule->facts().states != settings.rule->facts().states ||
        group.rule->facts().phases != settings.rule->facts().phases ||
        group.rule->facts().corrects_noise != settings.rule->facts().corrects_noise ||
        group.rule->facts().evaluated.weight != settings.rule->facts().evaluated.weight) {
      given.error("match",
                  "'{}' changes which tensors the optimizer keeps, at which steps, or what of them "
                  "is tested; allowed: keys that change none of it",
                  match);
    }
    check_match(given, "match", match, group.match, model);
    settings.groups.push_back(std::move(group));
  }
}

/// Adds the group of a language model's tables and head where the rule makes matrices orthogonal:
/// no vectors go through them, and they stay adamw's, as Muon's authors have it.
void add_tables(const ConfigSection& optimizer, const Model& model, OptimizerSettings& settings) {
  LanguageModel* const text = model.language_model();
  nlohmann::json keys = optimizer.resolved();
  if (!text || !keys.value("orthogonal", false)) return;
  std::set<const Parameter*> products;
  text->for_each([&](Layer& layer) {
    if (auto* const linear = dynamic_cast<Linear*>(&layer)) products.insert(&linear->weight());
  });
  products.erase(&text->head());
  std::string names;
  for (const Parameter* parameter : model.parameters()) {
    if (!parameter->is_weight() || products.count(parameter) > 0) continue;
    names += names.empty() ? "^(" : "|";
    for (const char c : parameter->name) names += (c == '.' ? "\\" : "") + std::string(1, c);
  }
  if (names.empty()) return;
  keys["orthogonal"] = false;
  for (const char* key : {"type", "lr", "decay", "groups", "freeze"}) keys.erase(key);
  ConfigSection section(keys, optimizer.path("groups"));
  ParameterGroup group;
  group.name = "tables and head, not orthogonal";
  group.match = std::regex(names + ")$", std::regex::ECMAScript);
  group.rule = optimizers().make(settings.type, optimizer.path("type"), section);
  settings.groups.push_back(std::move(group));
}

/// Checkpoints tell states apart by their names.
void check_states(const ConfigSection& optimizer, const OptimizerRule& rule,
                  const std::string& type) {
  constexpr std::size_t kMost = 4;
  std::vector<std::string> names = rule.facts().states;
  if (names.size() > kMost)
    optimizer.error("type", "{} keeps {} states; allowed: {}", optimizers().whose(type),
                    names.size(), kMost);
  std::ranges::sort(names);
  const bool twice = std::ranges::adjacent_find(names) != names.end();
  if (twice || (!names.empty() && names.front().empty()))
    optimizer.error("type", "{} keeps states {}; each needs a name of its own",
                    optimizers().whose(type), fmt::format("'{}'", fmt::join(names, "', '")));
}

/// Reads `schedule`, of a rule that is known.
void read_schedule(ConfigSection& root, OptimizerSettings& settings) {
  ConfigSection schedule = root.section("schedule", "how the learning rate changes");
  const std::string schedule_type =
      schedule.text("type", "constant", "the schedule, see `--list schedules`");
  const ScheduleInputs probe{settings.lr, 1, 1.0};
  make_typed(schedules(), schedule_type, schedule, probe);
  schedule.finish();
  if (settings.rule->facts().needs_constant_rate) {
    if (schedule_type != "constant") {
      schedule.error("type",
                     "is {}, but {} averages its steps instead, all at one rate; allowed: constant",
                     schedule_type, settings.type);
    }
    for (const char* key : {"warmup_steps", "warmup_epochs"}) {
      if (const double length = schedule.resolved().value(key, 0.0); length != 0.0) {
        schedule.error(
            key, "is {}, but {} must know how it warms up; allowed: 0, and optimizer.warmup_steps",
            length, settings.type);
      }
    }
  }
  // It is made again once the run's length is known, from the resolved section, so nothing can
  // fail.
  settings.make_schedule = [resolved = schedule.resolved(),
                            schedule_type](const ScheduleInputs& inputs) {
    ConfigSection section(resolved, "schedule");
    section.text("type", "constant", "");
    return schedules().make(schedule_type, "schedule.type", section, inputs);
  };
}

}  // namespace

void read_optimizer(ConfigSection& root, const Model& model, const std::string& device,
                    OptimizerSettings& settings) {
  ConfigSection optimizer = root.section("optimizer", "the rule of the update");
  const std::string type = settings.type =
      optimizer.text("type", "sgd", "the rule, see `--list optimizers`");
  settings.lr = optimizer.number("lr", optimizers().rate(type), Range::at_least(0.0),
                                 "base learning rate; " + optimizers().rates());
  optimizer.read("decay", settings.decay_all, {{"weights", false}, {"all", true}},
                 "weight decay on tensors of two or more dimensions only, or on all");
  settings.rule = make_typed(optimizers(), type, optimizer);
  read_groups(optimizer, model, settings);
  add_tables(optimizer, model, settings);
  read_frozen(optimizer, model);
  optimizer.finish();
  check_states(optimizer, *settings.rule, type);
  if (device == "cuda") require_gpu_update(*settings.rule, type);
  read_schedule(root, settings);
}

ClipSettings read_clip(ConfigSection& root) {
  ClipSettings settings;
  root.read("clip_norm", settings.norm, Range::at_least(0.0),
            "largest gradient norm; 0: no clipping");
  root.read("clip", settings.per_bucket, {{"global", false}, {"bucket", true}},
            "the norm over all parameters, or over each bucket");
  return settings;
}

std::size_t OptimizerSettings::group_of(const Parameter& parameter) const {
  for (std::size_t k = 0; k < groups.size(); ++k) {
    if (std::regex_search(parameter.name, groups[k].match)) return k + 1;
  }
  return 0;
}

const OptimizerRule& OptimizerSettings::rule_of(const Parameter& parameter) const {
  const std::size_t group = group_of(parameter);
  return group == 0 ? *rule : *groups[group - 1].rule;
}

std::optional<Linear::Adapter> read_lora(ConfigSection& root, bool has_base,
                                         const std::string& adapter, Model& model) {
  std::optional<ConfigSection> lora = root.optional_section(
      "lora",
      "LoRA (arXiv 2106.09685): trains low-rank matrices that are added to those of linear layers. "
      "init names the base, whose parameters are frozen but for those of `train`; off where this "
      "is not given");
  if (!lora) return std::nullopt;
  Linear::Adapter settings;
  const std::optional<Adapter> from = adapter.empty() ? std::nullopt : read_adapter(adapter, false);
  if (from) settings = {from->rank, from->alpha, from->dropout};
  lora->read("rank", settings.rank, Range::closed(1, 1 << 16),
             "rows of A and columns of B: y = Wx + (alpha / rank)·B·A·x; default: 8, or that of "
             "init.adapter");
  settings.alpha =
      lora->number("alpha", from ? from->alpha : 2.0 * static_cast<double>(settings.rank),
                   Range::positive(), "default: twice the rank, or init.adapter's");
  lora->read("dropout", settings.dropout, Range::half_open(0, 1),
             "probability that a number that A takes becomes 0 in training");
  const std::vector<std::string> targets =
      lora->texts("targets", {},
                  "regular expressions: linear layers whose names one finds get adapters; none: "
                  "all in the model's blocks");
  const std::vector<std::string> whole =
      lora->texts("train", {}, "regular expressions: other parameters that are trained, whole");
  lora->finish();
  if (!root.has("lora")) return std::nullopt;  // a description
  if (!has_base)
    root.error("init", "is missing beside lora, whose base it is; give a model's file or folder");
  if (from && from->rank != settings.rank)
    lora->error("rank", "is {}, but {} has {}", settings.rank, adapter, from->rank);
  if (from && from->alpha != settings.alpha)
    lora->error("alpha", "is {}, but {} has {}", settings.alpha, adapter, from->alpha);
  const std::vector<Linear*> chosen = adapted_layers(*lora, targets, model);
  for (Parameter* parameter : model.parameters()) {
    parameter->trainable = false;
    parameter->in = Parameter::In::kBase;
  }
  each_match(*lora, "train", whole, model, [](Parameter& parameter) {
    parameter.trainable = true;
    parameter.in = Parameter::In::kModel;
  });
  for (Linear* layer : chosen) layer->adapt(settings);
  model.collect();
  return settings;
}

}  // namespace starling
