#include "apps/training/auto/auto_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/training/auto/trial.h"
#include "comm/agreement.h"
#include "comm/planner/advice.h"
#include "comm/planner/measure_network.h"
#include "core/error.h"
#include "core/host.h"
#include "core/log.h"
#include "core/quantity.h"
#include "kernels/open_backend.h"

namespace starling {
namespace {

/// What is chosen where measurement does not say otherwise.
nlohmann::json standard_algorithm(const TrainConfig& config) {
  return config.sync.auto_algorithm ? nlohmann::json{{"type", config.sync.algorithm.name}}
                                    : config.resolved["sync"]["algorithm"];
}

/// Makes what was chosen: `algorithm` and `topology` as a config has them, the latter unused by an
/// algorithm that needs none.
void apply(TrainConfig& config, const RankLayout& site, const nlohmann::json& algorithm,
           const nlohmann::json& topology, double bucket_mb) {
  nlohmann::json& sync = config.resolved["sync"];
  if (config.sync.auto_topology) {
    config.sync.algorithm =
        exchanged_by(algorithm_of(algorithm, &sync["algorithm"]), config.sync.mixer);
    if (config.sync.algorithm.topology == TopologyKind::kNone) {
      config.sync.topology_name.clear();
      sync.erase("topology");
    } else {
      ConfigSection section(topology, "sync.topology");
      config.sync.topology = make_topology(section, site, config.sync.algorithm.topology);
      config.sync.topology_name = section.resolved().value("type", "");
      sync["topology"] = section.resolved();
    }
  }
  if (config.sync.auto_bucket) {
    config.sync.bucket_bytes = bucket_mb * kMebibyte;
    sync["bucket_mb"] = bucket_mb;
  }
  config.sync.auto_topology = config.sync.auto_bucket = false;
}

/// The slowest rank's, everywhere.
void agree(StepModel& step, World& world) {
  const double rate = step.matrix_flops_per_second;
  std::vector<double> values{step.forward, step.backward, rate > 0.0 ? 1.0 / rate : 0.0};
  for (const PlannedTensor& tensor : step.tensors) values.push_back(tensor.ready);
  world.max(values.data(), values.size());
  step.forward = values[0];
  step.backward = values[1];
  step.matrix_flops_per_second = values[2] > 0.0 ? 1.0 / values[2] : 0.0;
  for (std::size_t i = 0; i < step.tensors.size(); ++i) step.tensors[i].ready = values[i + 3];
}

}  // namespace

std::string choose_by_measurement(TrainConfig& config, const RankLayout& site,
                                  const ShapeTrace& trace, Backend& backend, Transport& transport) {
  if (!config.sync.auto_topology && !config.sync.auto_bucket) return {};
  if (transport.size() == 1) {
    apply(config, site, standard_algorithm(config), {{"type", kUsualTopology}}, kUsualBucket);
    return {};
  }
  StepModel step;
  on_all_ranks(transport, [&] { step = time_passes(config, trace, backend); });
  agree(step, transport);
  MeasureSettings settings;
  const int threads = config.device.threads > 0
                          ? config.device.threads
                          : std::max(1, cores_of_rank(transport.world().local_size()));
  const auto host =
      open_backend(DeviceType::kCpu, backend.device() == DeviceType::kCpu ? threads : 1);
  settings.spare_cores = cores_of_rank(transport.world().local_size()) >= threads + 1;
  settings.direct = config.sync.transport.reads_parameters && !config.sync.mixer.encodes &&
                    backend.device() == DeviceType::kCpu;
  const NetworkModel network = measure_network(transport, *host, settings);
  for (const std::string& warning : network_warnings(network))
    if (transport.rank() == 0) log::warning("{}", warning);

  std::string decision, text;
  if (transport.rank() == 0) {
    const std::vector<double> sizes =
        config.sync.auto_bucket ? usual_bucket_sizes()
                                : std::vector<double>{config.sync.bucket_bytes / kMebibyte};
    Advice advice;
    if (config.sync.auto_topology) {
      advice = advise(network, step, sizes, &config.sync.algorithm);
    } else {
      advice = advise_for(config.sync.algorithm, config.sync.topology.get(),
                          config.sync.topology_name, network, step, sizes);
    }
    const PlannedChoice& choice = advice.choices[advice.best];
    text = fmt::format(
        "auto: {}, bucket_mb {}: predicted {} a step, {} of it waiting; computation alone {}\n",
        choice.label(), plain_number(choice.bucket_mb), quantity(choice.prediction.step, "s"),
        quantity(choice.prediction.exposed, "s"), quantity(advice.compute, "s"));
    if (config.sync.auto_topology) text += fmt::format("auto: {}\n", advice.reason);
    if (const std::string disturbed = disturbance_text(advice); !disturbed.empty())
      text += "auto: " + disturbed;
    nlohmann::json figures{{"algorithm", choice.algorithm},
                           {"topology", choice.label()},
                           {"bucket_mb", choice.bucket_mb},
                           {"predicted_step_ms", choice.prediction.step * 1e3},
                           {"predicted_exposed_ms", choice.prediction.exposed * 1e3},
                           {"compute_ms", advice.compute * 1e3},
                           {"network", nlohmann::json::parse(to_json(network))}};
    if (config.sync.auto_topology) figures["reason"] = advice.reason;
    decision = figures.dump();
  }
  decision = transport.world().all_gather(decision).front();
  config.sync.auto_figures = nlohmann::json::parse(decision);
  nlohmann::json algorithm = standard_algorithm(config);
  if (config.sync.auto_figures["algorithm"] != config.sync.algorithm.name)
    algorithm = {{"type", config.sync.auto_figures["algorithm"]}};
  apply(config, site, algorithm, {{"type", config.sync.auto_figures["topology"]}},
        config.sync.auto_figures["bucket_mb"].get<double>());
  return text;
}

void adopt_choice(TrainConfig& config, const RankLayout& site, const nlohmann::json& saved_config,
                  const std::string& source) {
  if (!config.sync.auto_topology && !config.sync.auto_bucket) return;
  const auto sync = saved_config.find("sync");
  if (sync == saved_config.end() || !sync->is_object() || !sync->contains("bucket_mb")) {
    fail(ExitCode::kUsage, "resume", {.file = source},
         "the checkpoint does not say which topology and bucket size its run had");
  }
  apply(config, site, sync->value("algorithm", nlohmann::json()),
        sync->value("topology", nlohmann::json()), sync->value("bucket_mb", kUsualBucket));
}

}  // namespace starling
