#include "apps/topo/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "apps/training/auto/auto_plan.h"
#include "apps/training/config/plugins.h"
#include "apps/training/config/train_config.h"
#include "apps/training/output/arguments.h"
#include "comm/mixer.h"
#include "comm/planner/advice.h"
#include "core/config.h"
#include "core/console.h"
#include "core/error.h"
#include "core/host.h"
#include "core/quantity.h"
#include "core/text.h"
#include "kernels/open_backend.h"

namespace starling {
namespace {

struct PlanOptions {
  int ranks = 0, ranks_per_node = 1, replica = 1;
  std::string measured;
  double bandwidth_gbits = 0.0, latency_us = 0.0;       ///< between hosts
  double inside_gbytes = 0.0, inside_latency_us = 0.0;  ///< inside a host, by messages
  double memory_gbytes = 0.0, update_gflops = 0.0;
  bool no_direct = false;
  std::string exchange;  ///< "fp32", "bf16", or empty: as the model's config says
  std::string model;
  std::vector<std::string> settings;
  double step_ms = 0.0, parameters_millions = 0.0;
  std::vector<double> bucket_mb;
  bool all = false, json = false;
};

NetworkModel network_of(const PlanOptions& options) {
  NetworkModel network;
  if (!options.measured.empty()) {
    network = network_from_json(read_json_file(options.measured).dump(), options.measured);
  } else if (options.ranks == 0) {
    fail(ExitCode::kUsage, "arguments",
         "plan needs --measured FILE, or --ranks N (and --ranks-per-node, --bandwidth, --latency)");
  }
  if (options.ranks > 0) network.resize(options.ranks, options.ranks_per_node);
  if (options.bandwidth_gbits > 0.0) network.set_links(options.bandwidth_gbits * 1.25e8);
  if (options.latency_us > 0.0) network.between.latency = options.latency_us * 1e-6;
  if (options.bandwidth_gbits > 0.0 || options.latency_us > 0.0 || options.measured.empty())
    network.derive_pair();
  if (options.inside_gbytes > 0.0) network.inside.bandwidth = options.inside_gbytes * 1e9;
  if (options.inside_latency_us > 0.0) network.inside.latency = options.inside_latency_us * 1e-6;
  if (options.memory_gbytes > 0.0) network.memory_bandwidth = options.memory_gbytes * 1e9;
  if (options.no_direct) network.direct = false;
  if (options.replica == 1) return network;
  if (network.replica > 1)
    fail(ExitCode::kUsage, "arguments",
         "--replica {}: {} is of replicas of {} already; leave --replica out", options.replica,
         options.measured, network.replica);
  if (network.ranks_per_host % options.replica != 0 || network.ranks % options.replica != 0)
    fail(ExitCode::kUsage, "arguments", "--replica {} does not divide the {} ranks, {} on a host",
         options.replica, network.ranks, network.ranks_per_host);
  network.form_replicas(options.replica);
  return network;
}

/// The tensors of a config's model, and how long a step takes on this machine unless that is given.
StepModel step_of_config(const PlanOptions& options, const NetworkModel& network) {
  register_builtins();
  nlohmann::json json = read_json_file(options.model);
  apply_settings(json, options.settings);
  // The ranks of the plan are not here: sizes and times are of one.
  if (json.is_object() && json.contains("sync") && json["sync"].is_object()) {
    json["sync"].erase("topology");
    json["sync"].erase("replica");  // --replica
  }
  TrainConfig config = read_train_config(json, options.model, {1, 1});
  const ShapeTrace trace = trace_shapes(config);
  if (options.step_ms <= 0.0) {
    const int threads =
        config.device.threads > 0
            ? config.device.threads
            : std::max(1, usable_cores() / (network.ranks_per_host * network.replica));
    const auto backend = open_backend(DeviceType::kCpu, threads);
    StepModel step = time_passes(config, trace, *backend);
    if (options.update_gflops > 0.0) step.matrix_flops_per_second = options.update_gflops * 1e9;
    return step;
  }
  StepModel step = untimed_step(config, trace);
  if (options.update_gflops > 0.0) step.matrix_flops_per_second = options.update_gflops * 1e9;
  step.forward = options.step_ms * 1e-3 / 3.0;
  step.backward = options.step_ms * 1e-3 - step.forward;
  return step;
}

/// What the update's products of whole matrices take, where there are any.
std::string matrices_text(const PlanOptions& options, const NetworkModel& network,
                          const StepModel& step) {
  const double flops = step.matrix_flops() / network.replica;
  if (flops == 0.0) return {};
  const bool assumed = options.update_gflops <= 0.0 && options.step_ms > 0.0;
  return fmt::format("an update's products of whole matrices: {}, {} at {}{}\n",
                     quantity(flops, "FLOP"), quantity(step.matrix_seconds(flops), "s"),
                     quantity(step.matrix_flops_per_second, "FLOP/s"),
                     assumed ? " (assumed; --update-gflops says it)" : "");
}

std::string network_text(const NetworkModel& network) {
  std::string text =
      network.replica > 1
          ? fmt::format("{} of {} ranks", counted(network.ranks, "replica"), network.replica)
          : counted(network.ranks, "rank");
  text += " on " + counted(network.hosts(), "host");
  if (network.hosts() > 1) {
    const double typical = network.typical_link();
    text += fmt::format(
        "; between hosts {}{}, {}{}", quantity(8.0 * typical, "bit/s"),
        network.between.bandwidth < 0.95 * typical
            ? fmt::format(" (one pair: {})", quantity(8.0 * network.between.bandwidth, "bit/s"))
            : "",
        quantity(network.between.latency, "s"),
        network.between_measured
            ? ""
            : " (assumed: nobody measured it; give --bandwidth, or measure on several hosts)");
    const auto slowest = std::ranges::min_element(network.host_bandwidth);
    if (slowest != network.host_bandwidth.end() && *slowest < 0.8 * typical) {
      text += fmt::format(" (host {}: {})", slowest - network.host_bandwidth.begin(),
                          quantity(8.0 * *slowest, "bit/s"));
    }
  }
  if (network.ranks_per_host > 1 && network.ranks > 1) {
    text += network.direct
                ? "; parameters read in place inside a host"
                : fmt::format("; inside a host {}, {}", quantity(network.inside.bandwidth, "B/s"),
                              quantity(network.inside.latency, "s"));
  }
  return text + fmt::format("; updates move {}\n", quantity(network.memory_bandwidth, "B/s"));
}

int plan(const PlanOptions& options) {
  const NetworkModel network = network_of(options);
  StepModel step =
      !options.model.empty()
          ? step_of_config(options, network)
          : even_step(
                1e6 * (options.parameters_millions > 0.0 ? options.parameters_millions : 25.6),
                1e-3 * (options.step_ms > 0.0 ? options.step_ms : 100.0));
  if (!options.exchange.empty()) step.exchange_by(mixers().make(options.exchange, "--exchange"));
  const Advice advice =
      advise(network, step, options.bucket_mb.empty() ? usual_bucket_sizes() : options.bucket_mb,
             nullptr, true);
  const std::string text = options.json
                               ? advice_json(advice)
                               : network_text(network) + matrices_text(options, network, step) +
                                     advice_text(advice, options.all);
  answer(text);
  return 0;
}

}  // namespace

Command add_plan(CLI::App& app) {
  const auto given = std::make_shared<PlanOptions>();
  PlanOptions& options = *given;
  CLI::App* command = app.add_subcommand(
      "plan", "predict the step time of every topology and bucket size, and recommend one");
  command->add_option("-n,--ranks", options.ranks, "number of ranks (default: as measured)")
      ->check(whole_in(1, 65536));
  add_number(*command, "--ranks-per-node", options.ranks_per_node,
             "consecutive ranks that share a host and its link", 1, 65536);
  add_number(*command, "--replica", options.replica,
             "consecutive ranks of a host that are one replica (sync.replica), which counts as one "
             "rank in all that follows",
             1, 4096);
  command->add_option("--measured", options.measured, "a file of `starling-topo measure --output`");
  const auto positive = [&](const char* name, auto& value, const char* doc) {
    command->add_option(name, value, doc)->check(number_in(1e-9, 1e15));
  };
  positive("--bandwidth", options.bandwidth_gbits,
           "of a host's link, Gbit/s each way (default: measured, or 1)");
  positive("--latency", options.latency_us,
           "between hosts, microseconds (default: measured, or 50)");
  positive("--inside-bandwidth", options.inside_gbytes, "of messages inside a host, GB/s");
  positive("--inside-latency", options.inside_latency_us,
           "of messages inside a host, microseconds");
  positive("--memory-bandwidth", options.memory_gbytes, "that a rank's update reaches, GB/s");
  positive("--update-gflops", options.update_gflops,
           "that the products of an update reach (muon's), GFLOP/s (default: measured here; with "
           "--step-ms assumed: 100, or an H200's for a config of device cuda)");
  command->add_flag("--no-direct", options.no_direct,
                    "ranks of one host send messages instead of reading each other's parameters");
  command
      ->add_option("--exchange", options.exchange,
                   "gossip's numbers on the wire (default: the config's, or fp32)")
      ->check(CLI::IsMember(mixers().names()));
  command->add_option("--model", options.model,
                      "a trainer's config: its tensors, and the time of a step measured here");
  add_list(*command, "--set", options.settings, "a key of that config, as KEY=VALUE (repeatable)");
  positive("--step-ms", options.step_ms,
           "time of one rank's forward and backward pass (default: measured here, or 100)");
  positive("--parameters", options.parameters_millions,
           "millions of parameters, without --model (default: 25.6); of no known shape: "
           "updated as by adamw");
  positive("--bucket-mb", options.bucket_mb, "bucket sizes to try (default: 1, 4, 25, 100)");
  command->add_flag(
      "--all", options.all,
      "every bucket size of every topology, and all keys that were tried, not the best alone");
  command->add_flag("--json", options.json, "print every choice as JSON");
  return {command, [given] { return plan(*given); }};
}

}  // namespace starling
