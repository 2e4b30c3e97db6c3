#include "apps/training/config/graph_plan.h"

#include <fmt/format.h>

#include <numeric>

#include "apps/data/image_collate.h"

namespace starling {
namespace {

/// Skipped updates do not count for the rule, so its phase is another number than the step's.
std::int64_t free_phases(const TrainConfig& config) {
  return config.device.compute == DType::kFloat16 ? config.optimizer.rule->facts().phases : 1;
}

}  // namespace

GraphPlan plan_graphs(const TrainConfig& config, const RankLayout& site) {
  GraphPlan plan{.choice = config.device.cuda_graphs,
                 .accumulate = config.length.accumulate,
                 .rule_phases = free_phases(config)};
  if (site.ranks > 1 && config.sync.transport.through_host)
    plan.why_not = fmt::format("exchanges by {} pass through the host", config.sync.transport.name);
  const Topology* topology = site.ranks > 1 ? config.sync.topology.get() : nullptr;
  std::string never;
  plan.period = std::lcm(repeat_period(topology, *config.optimizer.rule, never),
                         config.sync.algorithm.steps.period);
  if (config.sync.algorithm.steps.asynchronous)
    never = fmt::format("{} goes by the clock, not by steps", config.sync.algorithm.label());
  else if (config.sync.algorithm.steps.period == 0)
    never = fmt::format("{} does not say after how many steps its work repeats",
                        config.sync.algorithm.label());
  if (!config.sync.later.empty()) never = "sync.switch changes what steps do";
  if (!config.optimizer.groups.empty())
    never = "groups of parameters have rates of their own (optimizer.groups)";
  if (config.state.lookahead)
    never = "the model goes back towards slow numbers after some steps only (lookahead)";
  if (images_of(config.data.info).growth) never = "training images grow (data.progressive)";
  if (config.sync.synchronized_norms)
    never = "batch norms wait for all ranks' statistics (sync.batch_norm)";
  if (config.sync.replica > 1 && config.length.accumulate > 1)
    never =
        "with sync.replica the memory of gradients is of one graph, and accumulate adds those of "
        "several";
  if (config.device.check_numbers) never = "the host looks at every number (check_numbers)";
  if (plan.why_not.empty()) plan.why_not = never;
  if (plan.why_not.empty() && topology && plan.rule_phases > 1) {
    plan.why_not =
        "in fp16 the steps of an accumulating rule differ from rank to rank once one has "
        "overflowed";
  }
  if (plan.period == 0) return plan;
  plan.graphs = plan.count(plan.period, false);
  if (plan.why_not.empty()) plan.why_not = plan.too_many(plan.period, false);
  return plan;
}

std::string graph_text(const TrainConfig& config, const RankLayout& site) {
  if (config.device.cuda_graphs == GraphChoice::kOff)
    return "graphs: none, because cuda_graphs is false\n";
  if (site.ranks > 1 && config.sync.auto_topology)
    return "graphs: as the topology allows, which is chosen at the start\n";
  const GraphPlan plan = plan_graphs(config, site);
  if (!plan.why_not.empty()) return fmt::format("graphs: none, because {}\n", plan.why_not);
  const auto times = [](std::int64_t period) {
    return period == 1 ? std::string("each") : std::to_string(period);
  };
  std::string text =
      fmt::format("graphs: {}, each of one micro-batch; the work of steps comes again after {}",
                  plan.graphs, times(plan.period));
  if (site.ranks == 1) return text + "\n";
  const std::int64_t by_peers = std::lcm<std::int64_t>(plan.period, 2);
  const std::int64_t graphs = config.sync.topology ? plan.count(by_peers, true) : plan.graphs;
  if (graphs != plan.graphs)
    text +=
        fmt::format("; {}, and {}, where ranks read each other's memory", graphs, times(by_peers));
  return text + "; none where exchanges pass through the host\n";
}

}  // namespace starling
