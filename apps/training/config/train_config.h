#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/data/data_settings.h"
#include "apps/training/device/device_settings.h"
#include "apps/training/optimizer/optimizer_settings.h"
#include "apps/training/output/metrics.h"
#include "apps/training/schedules/run_length.h"
#include "apps/training/state/state_settings.h"
#include "apps/training/sync/sync_settings.h"
#include "apps/training/tasks/task_settings.h"
#include "apps/training/tasks/training_pass.h"
#include "comm/bucket.h"
#include "layers/layer.h"
#include "topology/topology.h"

namespace starling {

/// A run's configuration: what each folder of the trainer has read, and the objects made from it.
struct TrainConfig {
  std::uint64_t seed = 1;
  DeviceSettings device;
  OutputSettings output;
  DataSettings data;
  std::unique_ptr<Task> task;
  std::unique_ptr<Model> model;
  LossSettings loss;
  LengthSettings length;
  OptimizerSettings optimizer;
  SyncSettings sync;
  StateSettings state;
  EvaluateSettings evaluate;

  /// What the model of `init` has besides its weights, for the run's own model files: metadata
  std::map<std::string, std::string> companions;
  std::string source;  ///< the config's file, for errors
  nlohmann::json resolved;
  nlohmann::json written;  ///< as the user gave it, without defaults

  PassShape pass_shape() const {
    return {length.batch_size,
            device.dtype,
            device.compute,
            sync.synchronized_norms,
            device.type == "cuda" ? DeviceType::kCuda : DeviceType::kCpu,
            device.recompute};
  }
};

/// Length of the run that a config describes.
inline RunLength run_length(const TrainConfig& config, const RankLayout& site) {
  LengthSettings length = config.length;
  length.batch_size *= site.replica;  // a replica counts as one rank
  return run_length(length, config.data.info.train_samples, site.replicas().ranks);
}

/// Reads a config; every mistake is Error(kUsage) with the key's path. Loads the plug-ins that it
/// names first. `check_size`: with the sizes that the data set declares; a run leaves that to
/// check_data_size() once it is open. `use`: what it is read for, where that is not to train.
TrainConfig read_train_config(const nlohmann::json& config, const std::string& source,
                              const RankLayout& site, bool check_size = true, DataUse use = {});
/// Checks what depends on the data set's size, such as the steps of an epoch.
void check_data_size(const TrainConfig& config, const std::string& source, const RankLayout& site);

/// Tells loss and sampler of the training samples' classes, once the data set is open.
void tell_classes(TrainConfig& config);

/// A trace of what this config trains, before any memory is taken.
ShapeTrace trace_shapes(const TrainConfig& config);

/// The buckets of what it trains.
inline BucketPlan plan_buckets(const TrainConfig& config, const ShapeTrace& trace) {
  return plan_buckets(trace.ready_order, trace.unused, config.device.dtype,
                      config.sync.bucket_bytes);
}

/// `--set` of "steps" or "epochs" replaces the other one.
void apply_settings(nlohmann::json& config, const std::vector<std::string>& settings);

/// All config keys by their full paths, each type's included, with the words that they take.
std::vector<ConfigKey> config_keys();
/// Text of docs/config.md, from the same declarations that read a config.
std::string describe_config();

}  // namespace starling
