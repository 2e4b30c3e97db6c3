#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "apps/inference/test_views.h"
#include "apps/trainer/config/run_length.h"
#include "apps/trainer/data/augment.h"
#include "apps/trainer/data/cached.h"
#include "apps/trainer/data/dataset.h"
#include "apps/trainer/data/sampler.h"
#include "apps/trainer/schedules/schedule.h"
#include "apps/trainer/state/init_file.h"
#include "apps/trainer/state/lookahead.h"
#include "apps/trainer/state/loss_scaler.h"
#include "apps/trainer/state/model_average.h"
#include "apps/trainer/tasks/training_pass.h"
#include "comm/algorithm.h"
#include "comm/mixer.h"
#include "comm/transports/plan.h"
#include "core/config.h"
#include "kernels/open_backend.h"
#include "kernels/optimizer.h"
#include "layers/layer.h"
#include "topology/check.h"
#include "topology/topology.h"

namespace starling {

inline constexpr double kMebibyte = 1024.0 * 1024.0;

/// Intervals at which something repeats, in epochs and in steps; 0 is never.
struct Interval {
  std::int64_t every_epochs = 0, every_steps = 0;
  /// Whether it is due after `step` updates.
  bool due(std::int64_t step, const RunLength& length) const;
  /// The first step after `step` at which it is due; INT64_MAX where it never is.
  std::int64_t first_due(std::int64_t step, const RunLength& length) const;
};

/// "cuda_graphs": whole steps as graphs of the device; see step_graphs.h.
enum class GraphChoice : std::uint8_t { kAuto, kOn, kOff };

/// Parameters that are updated otherwise than the rest, by their names: an item of
/// `optimizer.groups`. The first that matches wins.
struct ParameterGroup {
  std::regex match;
  double lr_scale = 1.0;
  double until_epoch = 0.0;  ///< from there on it stays as it is; 0: never
  /// It gives a weight decay, which then applies whatever a parameter's shape
  bool own_decay = false;
  std::unique_ptr<OptimizerRule> rule;
};

/// A part of a run in which ranks agree in another way than before: an item of `sync.switch`.
struct SyncPhase {
  std::int64_t step = 0;  ///< the first
  double epoch = 0.0;     ///< where it begins, if this is above 0
  AlgorithmPlan algorithm;
  std::string topology_name;
  std::unique_ptr<Topology> topology;  ///< null for an algorithm that needs none
  std::int64_t first_step(const RunLength& length) const;
};

/// Settings of `elastic`: how a run goes on with another number of ranks.
struct Elastic {
  bool keep_global_batch = true;  ///< or each rank's
  /// The rate is multiplied by (new / old samples of an update) to this power
  double lr_power = 0.0;
  std::string topology = "base-2";  ///< in place of one that cannot have so many ranks
  /// A lost rank: the others go on in the same processes, where MPI can do that
  bool survive = false;
};

struct TrainConfig {
  std::uint64_t seed = 1;
  std::string device, precision, trace;
  std::string flight_recorder;  ///< on, end or off
  InitialFile init;
  DType dtype = DType::kFloat32;  ///< of parameters, gradients, optimizer state and statistics
  /// Of activations and products: dtype, bf16 or fp16; see choose_precision()
  DType compute = DType::kFloat32;
  LossScaleSettings loss_scale;  ///< used where compute is fp16
  int threads = 0;
  bool deterministic = true, tf32 = false, cudnn_benchmark = false;  ///< see BackendSettings
  GraphChoice cuda_graphs = GraphChoice::kAuto;
  bool tensorboard = true, check_numbers = false;

  std::unique_ptr<Dataset> dataset;
  CachedDataset* cache = nullptr;  ///< `dataset`, with `data.cache`
  DatasetInfo data;
  std::shared_ptr<Sampler> sampler;
  int data_threads = 0;  ///< data.threads; 0: what computing leaves over
  bool shuffle = true;
  Augmenters augment;
  double dirichlet_alpha = 0.0;
  std::int64_t batch_size = 128, accumulate = 1;
  double epochs = 0.0;     ///< a part of one too; 0: `steps`
  std::int64_t steps = 0;  ///< 0: `epochs`
  Elastic elastic;         ///< how a run goes on with another number of ranks
  /// Of a run that did, with its numbers of ranks; empty: it did not
  std::vector<Stretch> stretches;

  std::unique_ptr<Task> task;
  std::unique_ptr<Model> model;

  std::string optimizer;  ///< its type
  std::unique_ptr<OptimizerRule> rule;
  /// `optimizer.groups`; a parameter that none matches is updated by `rule`
  std::vector<ParameterGroup> groups;
  double lr = 0.1;
  bool decay_all = false;
  std::function<std::unique_ptr<Schedule>(const ScheduleInputs&)> make_schedule;

  AlgorithmPlan algorithm;
  double lr_scale = 1.0;  ///< on the rate in steps whose gradient is the rank's own
  std::string topology_name;
  /// Null for an algorithm that needs none, and until choose_by_measurement()
  std::unique_ptr<Topology> topology;
  nlohmann::json resolved_topology;  ///< with every key
  /// After the first, which the members above have
  std::vector<SyncPhase> phases;
  bool auto_topology = false, auto_bucket = false;  ///< left to measurement; see auto_plan.h
  /// The config's word; `algorithm` is gossip until it is chosen
  bool auto_algorithm = false;
  nlohmann::json auto_figures;  ///< of that choice, for summary.json
  double bucket_bytes = 0.0, timeout_s = 300.0, heartbeat_s = 5.0;
  int max_ctas = 0;                 ///< see NcclSettings
  bool verify_checkpoints = false;  ///< sync.verify: before each checkpoint,
  std::int64_t verify_every = 0;    ///< or every so many steps; 0: not
  bool in_backward = true, overlap = true, allow_unused = false;
  TransportPlan transport;
  MixerKind mixer;  ///< sync.exchange
  ClipSettings clip;

  std::optional<AverageSettings> ema;
  std::optional<LookaheadSettings> lookahead;
  bool synchronized_norms = false;  ///< sync.batch_norm sync, with several ranks
  /// Batches of sync.batch_norm recalibrate; 0: statistics are the mean of the ranks'
  std::int64_t recalibrate_batches = 0;

  Interval evaluate, checkpoint;
  std::vector<TestView> views;  ///< of a test image; evaluate.tta
  int keep = 2;
  bool keep_best = false;
  std::int64_t log_every = 10;

  std::string source;  ///< the config's file, for errors
  nlohmann::json resolved;
  nlohmann::json written;       ///< as the user gave it, without defaults
  std::vector<ConfigKey> keys;  ///< as declared, for docs/config.md

  /// The number of the group that a parameter belongs to, from 1 on; 0: of none.
  std::size_t group_of(const Parameter& parameter) const;
  const OptimizerRule& rule_of(const Parameter& parameter) const;

  PassShape pass_shape() const { return {batch_size, dtype, compute, synchronized_norms}; }
};

/// Reads a config; every mistake is Error(kUsage) with the key's path. Loads the plug-ins that it
/// names first. `check_size`: with the sizes that the data set declares; a run leaves that to
/// check_data_size() once it is open.
TrainConfig read_train_config(const nlohmann::json& config, const std::string& source,
                              const RankLayout& site, bool check_size = true);
/// Checks what depends on the data set's size, such as the steps of an epoch.
void check_data_size(const TrainConfig& config, const std::string& source, const RankLayout& site);

/// A trace of what this config trains, before any memory is taken.
ShapeTrace trace_shapes(const TrainConfig& config);

/// `--set` of "steps" or "epochs" replaces the other one.
void apply_settings(nlohmann::json& config, const std::vector<std::string>& settings);

/// Text of docs/config.md, from the same declarations that read a config.
std::string describe_config();

}  // namespace starling
