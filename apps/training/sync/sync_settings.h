#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/training/device/device_settings.h"
#include "apps/training/optimizer/optimizer_settings.h"
#include "apps/training/schedules/run_length.h"
#include "comm/algorithm.h"
#include "comm/mixer.h"
#include "comm/transports/plan.h"
#include "core/config.h"
#include "layers/layer.h"
#include "topology/topology.h"

namespace starling {

/// A part of a run in which ranks agree in one way: the first, or an item of `sync.switch`.
struct SyncPhase {
  std::int64_t step = 0;  ///< the first
  double epoch = 0.0;     ///< where it begins, if this is above 0
  AlgorithmPlan algorithm;
  std::string topology_name;
  /// Null for an algorithm that needs none, and until choose_by_measurement()
  std::unique_ptr<Topology> topology;
  std::int64_t first_step(const RunLength& length) const;
};

/// Section `sync`: how ranks agree; as a phase, the run's first.
struct SyncSettings : SyncPhase {
  nlohmann::json resolved_topology;                 ///< with every key
  std::vector<SyncPhase> later;                     ///< the phases after the first
  bool auto_topology = false, auto_bucket = false;  ///< left to measurement; see auto_plan.h
  /// The config's word; `algorithm` is gossip until it is chosen
  bool auto_algorithm = false;
  nlohmann::json auto_figures;  ///< of that choice, for summary.json
  TransportPlan transport;
  MixerKind mixer;               ///< sync.exchange
  int replica = 1;               ///< sync.replica: ranks that share a model (comm/replica.h)
  bool replica_by_host = false;  ///< it is "host"
  double lr_scale = 1.0;         ///< on the rate in steps whose gradient is the rank's own
  double bucket_bytes = 0.0, timeout_s = 300.0, heartbeat_s = 5.0;
  int max_ctas = 0;                 ///< see NcclSettings
  bool verify_checkpoints = false;  ///< sync.verify: before each checkpoint,
  std::int64_t verify_every = 0;    ///< or at this interval of steps; 0: not
  bool in_backward = true, overlap = true;
  bool synchronized_norms = false;  ///< sync.batch_norm sync, with several ranks
  /// Batches of sync.batch_norm recalibrate; 0: statistics are the mean of the ranks'
  std::int64_t recalibrate_batches = 0;

  std::size_t phases() const { return 1 + later.size(); }
  const SyncPhase& phase(std::size_t k) const { return k == 0 ? *this : later[k - 1]; }
  /// Where the config has phase k: "sync", "sync.switch[0]".
  static std::string key(std::size_t k);
  /// The algorithms of all phases.
  std::vector<const AlgorithmPlan*> plans() const;
};

/// The other sections that `sync` is checked against.
struct SyncPartners {
  const DeviceSettings& device;
  const OptimizerSettings& optimizer;
  const Model& model;
  RankLayout site;
  bool unequal_data = false;  ///< as MixerKind has it
};
/// What `sync.replica` may be, ascending: what divides the ranks of a host.
std::vector<int> replica_sizes(const RankLayout& site);
SyncSettings read_sync(ConfigSection& root, const SyncPartners& with);

/// Why ranks have nothing to compare with this algorithm and mixer; empty where they have.
/// `sync.verify` is refused then.
std::string why_not_verified(const AlgorithmPlan& algorithm, const MixerKind& mixer);

}  // namespace starling
