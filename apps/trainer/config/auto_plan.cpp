#include "apps/trainer/config/auto_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/trainer/device/trial.h"
#include "comm/agreement.h"
#include "comm/planner/advice.h"
#include "comm/planner/measure_network.h"
#include "core/error.h"
#include "core/host.h"
#include "core/log.h"
#include "kernels/open_backend.h"

namespace starling {
namespace {

constexpr double kUsualBucket = 25.0;

/// What is chosen where measurement does not say otherwise.
nlohmann::json standard_algorithm(const TrainConfig& config) {
  return config.auto_algorithm ? nlohmann::json{{"type", config.algorithm.name}}
                               : config.resolved["sync"]["algorithm"];
}

/// Makes what was chosen: `algorithm` and `topology` as a config has them, the latter unused by an
/// algorithm that needs none.
void apply(TrainConfig& config, const RankLayout& site, const nlohmann::json& algorithm,
           const nlohmann::json& topology, double bucket_mb) {
  nlohmann::json& sync = config.resolved["sync"];
  if (config.auto_topology) {
    config.algorithm = algorithm_of(algorithm, &sync["algorithm"]);
    if (config.algorithm.topology == TopologyKind::kNone) {
      config.topology_name.clear();
      sync.erase("topology");
    } else {
      ConfigSection section(topology, "sync.topology");
      config.topology = make_topology(section, site, config.algorithm.topology);
      config.topology_name = section.resolved().value("type", "");
      sync["topology"] = section.resolved();
    }
  }
  if (config.auto_bucket) {
    config.bucket_bytes = bucket_mb * kMebibyte;
    sync["bucket_mb"] = bucket_mb;
  }
  config.auto_topology = config.auto_bucket = false;
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
  if (!config.auto_topology && !config.auto_bucket) return {};
  if (transport.size() == 1) {
    apply(config, site, standard_algorithm(config), {{"type", "base-2"}}, kUsualBucket);
    return {};
  }
  StepModel step;
  together(transport, [&] { step = time_passes(config, trace, backend); });
  agree(step, transport);
  MeasureSettings settings;
  const int threads = config.threads > 0
                          ? config.threads
                          : std::max(1, cores_of_rank(transport.world().local_size()));
  const auto host =
      open_backend(DeviceType::kCpu, backend.device() == DeviceType::kCpu ? threads : 1);
  settings.spare_cores = cores_of_rank(transport.world().local_size()) >= threads + 1;
  settings.direct = config.transport.reads_parameters && !config.mixer.encodes &&
                    backend.device() == DeviceType::kCpu;
  const NetworkModel network = measure_network(transport, *host, settings);
  if (const std::string warning = half_duplex_warning(network);
      transport.rank() == 0 && !warning.empty())
    log::warning("{}", warning);

  std::string decision, text;
  if (transport.rank() == 0) {
    const std::vector<double> sizes = config.auto_bucket
                                          ? usual_bucket_sizes()
                                          : std::vector<double>{config.bucket_bytes / kMebibyte};
    Advice advice;
    if (config.auto_topology) {
      advice = advise(network, step, sizes, &config.algorithm);
    } else {
      advice = advise_for(config.algorithm, config.topology.get(), config.topology_name, network,
                          step, sizes);
    }
    const PlannedChoice& choice = advice.choices[advice.best];
    text = fmt::format(
        "auto: {}, bucket_mb {:.4g}: predicted {:.4g} ms a step, {:.4g} ms of it waiting; "
        "computation alone {:.4g} ms\n",
        choice.label(), choice.bucket_mb, choice.prediction.step * 1e3,
        choice.prediction.exposed * 1e3, advice.compute * 1e3);
    if (config.auto_topology) text += fmt::format("auto: {}\n", advice.reason);
    nlohmann::json figures{{"algorithm", choice.algorithm},
                           {"topology", choice.label()},
                           {"bucket_mb", choice.bucket_mb},
                           {"predicted_step_ms", choice.prediction.step * 1e3},
                           {"predicted_exposed_ms", choice.prediction.exposed * 1e3},
                           {"compute_ms", advice.compute * 1e3},
                           {"network", nlohmann::json::parse(to_json(network))}};
    if (config.auto_topology) figures["reason"] = advice.reason;
    decision = figures.dump();
  }
  decision = transport.world().all_gather(decision).front();
  config.auto_figures = nlohmann::json::parse(decision);
  nlohmann::json algorithm = standard_algorithm(config);
  if (config.auto_figures["algorithm"] != config.algorithm.name)
    algorithm = {{"type", config.auto_figures["algorithm"]}};
  apply(config, site, algorithm, {{"type", config.auto_figures["topology"]}},
        config.auto_figures["bucket_mb"].get<double>());
  return text;
}

void adopt_choice(TrainConfig& config, const RankLayout& site, const nlohmann::json& saved_config,
                  const std::string& source) {
  if (!config.auto_topology && !config.auto_bucket) return;
  const auto sync = saved_config.find("sync");
  if (sync == saved_config.end() || !sync->is_object() || !sync->contains("bucket_mb")) {
    fail(ExitCode::kUsage, "resume", {.file = source},
         "the checkpoint does not say which topology and bucket size its run had");
  }
  apply(config, site, sync->value("algorithm", nlohmann::json()),
        sync->value("topology", nlohmann::json()), sync->value("bucket_mb", kUsualBucket));
}

}  // namespace starling
