#include "apps/training/estimates/step_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "apps/training/estimates/floor.h"
#include "comm/bucket.h"
#include "core/config.h"
#include "core/error.h"
#include "core/quantity.h"
#include "core/text.h"

namespace starling {
namespace {

constexpr double kAssumedFlops = 1e11;
constexpr double kAssumedGigabits = 1.0;

NetworkModel network_of(const std::string& given, const RankLayout& site) {
  // A plan is often made where all ranks would be on one host: then each has one of its own.
  const int per_host = site.ranks_per_node < site.ranks ? site.ranks_per_node : 1;
  char* end = nullptr;
  const double gigabits = given.empty() ? kAssumedGigabits : std::strtod(given.c_str(), &end);
  NetworkModel network;
  if (given.empty() || *end == '\0') {
    if (!(gigabits > 1e-9 && gigabits < 1e15))
      fail(ExitCode::kUsage, "arguments",
           "--network is {}; needed: Gbit/s above 0, or a file of `starling-topo measure`", given);
    network.resize(site.ranks, per_host);
    network.set_links(gigabits * 1.25e8);
    network.derive_pair();
    return network;
  }
  network = network_from_json(read_json_file(given).dump(), given);
  network.resize(site.ranks, network.ranks == site.ranks ? network.ranks_per_host : per_host);
  return network;
}

/// "hidden behind 50 steps of 2 ms or more; 120 % by …" of an exchange that takes `seconds`.
std::string hiding_text(double seconds, std::int64_t hidden, double step_seconds) {
  if (hidden == 0) return ", waited for";
  const double least = seconds / static_cast<double>(hidden);
  std::string text = fmt::format(", hidden behind {} of {} or more", counted(hidden, "step"),
                                 quantity(least, "s"));
  if (step_seconds > 0.0)
    text += fmt::format(" ({:.0f} % of it by steps of {}, as expected)",
                        100.0 * std::min(1.0, step_seconds / least), quantity(step_seconds, "s"));
  return text;
}

std::string learning_text(const AlgorithmCost& cost) {
  if (cost.learning)
    return fmt::format(
        "; test loss {:+.1f} % of diloco's in fp32 (measured: docs/algorithms.md, \"Which one\")",
        100.0 * cost.learning->loss);
  return cost.disagreement ? "" : "; what it costs in learning has not been measured";
}

}  // namespace

double matrix_flops(const TrainConfig& config, const Parameter& parameter) {
  OperationWork pass;
  double flops = 0.0;
  for (const OperationWork& operation : count_matrices(
           config.optimizer.rule_of(parameter), {layer_of(parameter)}, config.device.dtype, pass)) {
    flops += operation.flops;
  }
  return flops;
}

StepModel untimed_step(const TrainConfig& config, const ShapeTrace& trace) {
  StepModel step;
  const auto element = static_cast<double>(size_of(config.device.dtype));
  for (const Parameter* parameter : trace.ready_order) {
    const std::int64_t padded = (parameter->shape.elements() + 31) / 32 * 32;
    const double ready = static_cast<double>(step.tensors.size() + 1) /
                         static_cast<double>(trace.ready_order.size());
    step.tensors.push_back(
        {static_cast<double>(padded) * element, ready, matrix_flops(config, *parameter)});
  }
  step.exchange_by(config.sync.mixer);
  step.matrix_flops_per_second = config.device.type == "cuda"
                                     ? kCeilings[0].flops(config.device.dtype, config.device.tf32)
                                     : kAssumedFlops;
  step.update_traffic =
      static_cast<double>(config.optimizer.rule->bytes_per_parameter(static_cast<int>(element))) /
      element;
  return step;
}

std::optional<StepTraffic> step_traffic(const TrainConfig& config, const ShapeTrace& trace,
                                        const RankLayout& site, const AlgorithmPlan& algorithm,
                                        const Topology* topology) {
  const bool chosen = topology || algorithm.topology == TopologyKind::kNone;
  if (site.ranks < 2 || algorithm.cost.exchanges.empty() || !chosen) return std::nullopt;
  const NetworkModel network{
      .ranks = site.ranks, .ranks_per_host = site.ranks_per_node, .direct = false};
  const StepModel step = untimed_step(config, trace);
  std::vector<RoundCost> rounds;
  if (topology)
    rounds = costs_of(*topology, network, step.gossip_whole || algorithm.messages.wire < 1.0);
  const Prediction of = predict(algorithm, rounds, network, step, config.sync.bucket_bytes);
  return StepTraffic{site.ranks * of.sent, of.between_hosts};
}

std::string outer_steps_text(const TrainConfig& config, const RankLayout& site,
                             const ShapeTrace& trace, const std::string& given,
                             double step_seconds) {
  std::string text;
  if (site.ranks < 2) return text;
  const NetworkModel network = network_of(given, site);
  StepModel step = untimed_step(config, trace);
  step.update_traffic = step.matrix_flops_per_second = 0.0;  // all of an exchange is waited for
  for (std::size_t k = 0; k < config.sync.phases(); ++k) {
    const SyncPhase& part = config.sync.phase(k);
    if (part.algorithm.topology != TopologyKind::kNone && !part.topology) continue;  // auto
    const bool whole = step.gossip_whole || part.algorithm.messages.wire < 1.0;
    const std::vector<RoundCost> rounds =
        part.topology ? costs_of(*part.topology, network, whole) : std::vector<RoundCost>{};
    double bytes = 0.0, bytes_a_step = 0.0;
    std::int64_t every = 1;
    std::string seconds;
    for (const PlannedExchange& exchange : part.algorithm.cost.exchanges) {
      if (exchange.every == 1 || exchange.pause) continue;
      AlgorithmPlan alone = part.algorithm;
      alone.cost.exchanges = {exchange};
      const Prediction one = predict(alone, rounds, network, step, config.sync.bucket_bytes);
      every = exchange.every;
      const double apart = static_cast<double>(every), moving = one.exposed * apart;
      bytes += one.sent * apart;
      bytes_a_step += one.sent;
      seconds += fmt::format("{}{}{}", seconds.empty() ? "" : ", and ", quantity(moving, "s"),
                             hiding_text(moving, exchange.hidden, step_seconds));
    }
    if (every == 1) continue;
    text += fmt::format("exchange{}: every {} a rank sends {}, {} a step; at {}{}: {}{}\n",
                        k == 0 ? "" : fmt::format(" of {}", part.algorithm.label()),
                        counted(every, "step"), quantity(bytes, "B"), quantity(bytes_a_step, "B"),
                        quantity(8.0 * network.typical_link(), "bit/s"),
                        given.empty() ? " (assumed; --network says it)" : "", seconds,
                        learning_text(part.algorithm.cost));
  }
  return text;
}

}  // namespace starling
