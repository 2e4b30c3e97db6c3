#include "apps/trainer/auto_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/trainer/agreement.h"
#include "apps/trainer/host.h"
#include "apps/trainer/trial.h"
#include "comm/planner/advice.h"
#include "comm/planner/measure_network.h"
#include "core/error.h"
#include "core/log.h"

namespace starling {
namespace {

constexpr double kMebibyte = 1024.0 * 1024.0;
constexpr double kUsualBucket = 25.0;

/// Makes what was chosen: `topology` is a config section, or null for all-reduce.
void apply(TrainConfig& config, const RunSite& site, const nlohmann::json& topology, double bucket_mb) {
  nlohmann::json& sync = config.resolved["sync"];
  if (config.auto_topology) {
    if (topology.is_null()) {
      config.algorithm = "allreduce";
      config.topology_name.clear();
      sync["algorithm"] = "allreduce";
      sync.erase("topology");
    } else {
      ConfigSection section(topology, "sync.topology");
      config.topology = make_topology(section, {site.ranks, site.ranks_on_host});
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
void agree(StepModel& step, Transport& transport) {
  std::vector<double> values{step.forward, step.backward};
  for (const PlannedTensor& tensor : step.tensors) values.push_back(tensor.ready);
  transport.max(values.data(), values.size());
  step.forward = values[0];
  step.backward = values[1];
  for (std::size_t i = 0; i < step.tensors.size(); ++i) step.tensors[i].ready = values[i + 2];
}

}  // namespace

std::string choose_by_measurement(TrainConfig& config, const RunSite& site, const ShapeTrace& trace, Backend& backend,
                                  Transport& transport) {
  if (!config.auto_topology && !config.auto_bucket) return {};
  if (transport.size() == 1) {
    apply(config, site, {{"type", "base-2"}}, kUsualBucket);
    return {};
  }
  StepModel step;
  together(transport, [&] { step = time_passes(config, trace, backend); });
  agree(step, transport);
  MeasureSettings settings;
  const int threads = config.threads > 0 ? config.threads : std::max(1, cores_of_rank(transport.local_size()));
  const auto host = open_backend(DeviceType::kCpu, backend.device() == DeviceType::kCpu ? threads : 1);
  settings.spare_cores = cores_of_rank(transport.local_size()) >= threads + 1;
  settings.direct = config.transport != "mpi" && !config.bf16_exchange && backend.device() == DeviceType::kCpu;
  const NetworkModel network = measure_network(transport, *host, settings);
  if (const std::string warning = half_duplex_warning(network); transport.rank() == 0 && !warning.empty()) log::warning("{}", warning);

  std::string decision, text;
  if (transport.rank() == 0) {
    const std::vector<double> sizes = config.auto_bucket ? usual_bucket_sizes() : std::vector<double>{config.bucket_bytes / kMebibyte};
    Advice advice;
    if (config.auto_topology) {
      advice = advise(network, step, sizes);
    } else {
      advice = advise_for(config.topology.get(), config.topology_name, network, step, sizes);
    }
    const std::size_t best = config.auto_topology ? advice.best : best_size(advice, config.topology ? config.topology_name : std::string());
    const PlannedChoice& choice = advice.choices[best];
    text =
        fmt::format("auto: {}, bucket_mb {:.4g}: predicted {:.4g} ms a step, {:.4g} ms of it waiting; computation alone {:.4g} ms\n",
                    choice.label(), choice.bucket_mb, choice.prediction.step * 1e3, choice.prediction.exposed * 1e3, advice.compute * 1e3);
    if (config.auto_topology) text += fmt::format("auto: {}\n", advice.reason);
    nlohmann::json figures{{"topology", choice.label()},
                           {"bucket_mb", choice.bucket_mb},
                           {"predicted_step_ms", choice.prediction.step * 1e3},
                           {"predicted_exposed_ms", choice.prediction.exposed * 1e3},
                           {"compute_ms", advice.compute * 1e3},
                           {"network", nlohmann::json::parse(to_json(network))}};
    if (config.auto_topology) figures["reason"] = advice.reason;
    decision = figures.dump();
  }
  decision = transport.all_gather(decision).front();
  config.auto_figures = nlohmann::json::parse(decision);
  const auto& name = config.auto_figures["topology"].get_ref<const std::string&>();
  nlohmann::json topology;
  if (name != "all-reduce") topology = {{"type", name}};
  apply(config, site, topology, config.auto_figures["bucket_mb"].get<double>());
  return text;
}

void adopt_choice(TrainConfig& config, const RunSite& site, const nlohmann::json& saved_config, const std::string& source) {
  if (!config.auto_topology && !config.auto_bucket) return;
  const auto sync = saved_config.find("sync");
  if (sync == saved_config.end() || !sync->is_object() || !sync->contains("bucket_mb")) {
    fail(ExitCode::kUsage, "resume", "{}: the checkpoint does not say which topology and bucket size its run had", source);
  }
  apply(config, site, sync->value("topology", nlohmann::json()), sync->value("bucket_mb", kUsualBucket));
}

}  // namespace starling
