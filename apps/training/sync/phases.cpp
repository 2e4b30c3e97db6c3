#include "apps/training/sync/phases.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "comm/growth.h"
#include "core/error.h"
#include "topology/check.h"

namespace starling {
namespace {

std::string standard_topology(const AlgorithmPlan& plan) {
  return plan.needs.default_topology.empty() ? "base-2" : plan.needs.default_topology;
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
                                        const AlgorithmPlan& plan, const SyncPartners& with) {
  std::unique_ptr<Topology> made;
  try {
    made = make_topology(topology, with.site, plan.topology, standard_topology(plan));
  } catch (const Error& error) {
    if (!error.parts().where.key.empty()) throw;
    const std::string& remedy = error.parts().remedy;
    topology.error("type", "{}{}{}", error.parts().what, remedy.empty() ? "" : "; ", remedy);
  }
  const std::string name = topology.resolved().value("type", "");
  check_kind(*made, name, plan.topology, plan.label(), with.site, topology);
  check_growth(plan, *with.optimizer.rule, with.optimizer.type, *made, name, with.site, sync);
  return made;
}

}  // namespace

void check_algorithm(const ConfigSection& sync, const AlgorithmPlan& plan,
                     const SyncPartners& with) {
  const auto& fit = plan.needs.optimizers;
  if (!fit.empty() && std::find(fit.begin(), fit.end(), with.optimizer.type) == fit.end()) {
    sync.error("algorithm", "{} does not go with the optimizer {}; allowed: {}", plan.label(),
               with.optimizer.type, fmt::join(fit, ", "));
  }
  if (!fit.empty() && !with.optimizer.groups.empty()) {
    sync.error("algorithm",
               "{} has the optimizer's formulas in its own, for all parameters alike; allowed: no "
               "optimizer.groups",
               plan.label());
  }
  if (plan.equality.mean_gradients_before > 0 && with.optimizer.rule->facts().corrects_noise) {
    sync.error("algorithm",
               "{} gives the optimizer means over the ranks, and optimizer.noise_correction is for "
               "a rank's own gradients; allowed: \"noise_correction\": 1, or gossip",
               plan.label());
  }
  if (plan.steps.asynchronous && with.device.deterministic) {
    sync.error("algorithm",
               "{} {}, so no two runs give the same bits, and deterministic is true; allowed: "
               "\"deterministic\": false, or {}",
               plan.label(), plan.steps.timing, plan.steps.undo);
  }
  if (!plan.needs.fp16_fault.empty() && with.device.compute == DType::kFloat16) {
    sync.error("algorithm", "{} does not go with fp16: {}", plan.label(), plan.needs.fp16_fault);
  }
  if (const std::int64_t given = plan.needs.ranks_per_node;
      given > 0 && with.site.ranks % given != 0) {
    sync.error("algorithm.ranks_per_node", "is {} for {} ranks; allowed: what divides them", given,
               with.site.ranks);
  }
  if (plan.messages.mixes_states && with.optimizer.rule->facts().states.empty()) {
    sync.error("algorithm",
               "{} mixes the optimizer's states too, and {} keeps none with these settings; "
               "allowed: \"mix_states\": 0",
               plan.label(), with.optimizer.type);
  }
  const std::string fault =
      plan.needs.rule_fault ? plan.needs.rule_fault(*with.optimizer.rule) : "";
  if (!fault.empty())
    sync.error("algorithm", "{} does not go with this optimizer: {}", plan.label(), fault);
}

void read_switch(const ConfigSection& sync, const std::vector<ConfigSection>& changes,
                 const SyncPartners& with, SyncSettings& settings) {
  nlohmann::json before = settings.resolved_topology;
  for (ConfigSection given : changes) {
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
    const AlgorithmPlan& last = settings.phase(settings.later.size()).algorithm;
    if (last.steps.restarts_updates) {
      given.error("algorithm",
                  "follows {} with states reset, whose optimizer counts its steps anew; allowed "
                  "there: states local or average",
                  last.label());
    }
    ConfigSection algorithm = given.section("algorithm", "", "type");
    phase.algorithm = read_algorithm(algorithm);
    check_algorithm(given, phase.algorithm, with);
    if (phase.algorithm.topology != TopologyKind::kNone) {
      if (given.has("topology") || before.is_null()) {
        ConfigSection topology = given.section("topology", "");
        if (topology.text("type", standard_topology(phase.algorithm), "") == "auto")
          topology.error("type", "is auto in a switch; allowed: a type");
        phase.topology = read_topology(given, topology, phase.algorithm, with);
        before = topology.resolved();
      } else {
        const std::string inherited = "the topology before";
        try {
          ConfigSection topology(before, inherited);
          phase.topology = read_topology(given, topology, phase.algorithm, with);
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
    take_ranks_per_node(phase.algorithm, before, with.site, given);
    given.finish();
    settings.later.push_back(std::move(phase));
  }
  if (!settings.later.empty() && (settings.auto_topology || settings.auto_bucket)) {
    sync.error("switch",
               "does not go with what is measured for the first algorithm alone; name a "
               "topology.type and a bucket_mb, or leave it out");
  }
}

void read_first_topology(ConfigSection& sync, const SyncPartners& with, SyncSettings& settings) {
  AlgorithmPlan& plan = settings.algorithm;
  if (plan.topology == TopologyKind::kNone) {
    // The topology may still serve an algorithm of sync.switch, and its nodes this one.
    settings.resolved_topology = sync.raw("topology", "object", "not used by this algorithm");
    take_ranks_per_node(plan, settings.resolved_topology, with.site, sync);
    return;
  }
  ConfigSection topology = sync.section("topology", "who mixes with whom");
  const std::string type =
      topology.text("type", settings.auto_algorithm ? "auto" : standard_topology(plan),
                    "see `--list topologies`; `auto`: chosen by measurement at the start");
  settings.auto_topology = type == "auto";
  if (settings.auto_algorithm && !settings.auto_topology) {
    topology.error("type",
                   "is {}, but sync.algorithm auto chooses the topology too; allowed: auto, or a "
                   "sync.algorithm",
                   type);
  }
  if (settings.auto_topology) {
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
    if (settings.lr_scale != 1.0 || with.optimizer.rule->facts().corrects_noise) {
      topology.error("type",
                     "is auto, which may choose all-reduce, but {} is for a rank's own gradients; "
                     "allowed: a type",
                     settings.lr_scale != 1.0 ? "sync.lr_scale" : "optimizer.noise_correction");
    }
    topology.finish();
    settings.topology_name = "auto";
    return;
  }
  settings.topology = read_topology(sync, topology, plan, with);
  settings.resolved_topology = topology.resolved();
  settings.topology_name = settings.resolved_topology.value("type", "");
  take_ranks_per_node(plan, settings.resolved_topology, with.site, sync);
}

AlgorithmPlan read_first_algorithm(ConfigSection& algorithm, SyncSettings& settings) {
  if (algorithm.text("type", "gossip", "see `--list algorithms`") != "auto")
    return read_algorithm(algorithm);
  settings.auto_algorithm = true;
  algorithm.finish();
  return algorithm_of(nullptr);
}

}  // namespace starling
