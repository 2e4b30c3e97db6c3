#pragma once

#include <optional>
#include <string>

#include "apps/training/optimizer/optimizer_settings.h"
#include "apps/training/schedules/run_length.h"
#include "apps/training/state/early_stopping.h"
#include "apps/training/state/init_file.h"
#include "apps/training/state/loss_scaler.h"
#include "apps/training/state/model_copy.h"
#include "apps/training/sync/sync_settings.h"
#include "core/config.h"
#include "layers/linear.h"

namespace starling {

/// Section `checkpoint`.
struct CheckpointSettings {
  Interval interval;
  int keep = 2;                  ///< the newest ones
  std::optional<Decisive> best;  ///< what checkpoints/best is chosen by; none: it is not kept
};
/// `tested`: what tests come to.
CheckpointSettings read_checkpoint(ConfigSection& root, const std::vector<MetricValue>& tested);

/// Section `elastic`: how a run continues with another number of ranks.
struct ElasticSettings {
  bool keep_global_batch = true;  ///< or each rank's
  /// The rate is multiplied by (new / old samples of an update) to this power
  double lr_power = 0.0;
  std::string topology = "base-2";  ///< in place of one that cannot have the new number of ranks
  /// After the loss of a rank the others continue in the same processes, where MPI can do that
  bool survive = false;
  /// Ranks may join by --join, and a lost one does not end the others
  bool join = false;
  std::int64_t rejoin = 3;  ///< with it: how often a rank that dies is started again
};
ElasticSettings read_elastic(ConfigSection& root);

/// What a run has besides the model's parameters, and where it begins.
struct StateSettings {
  InitialFile init;
  std::optional<Linear::Adapter> lora;  ///< section `lora`; the model has them
  std::string base_digest;              ///< with it: of init.file, once that was read
  LossScaleSettings loss_scale;         ///< used where DeviceSettings::compute is fp16
  std::optional<AverageSettings> ema;
  std::optional<LookaheadSettings> lookahead;
  CheckpointSettings checkpoint;
  ElasticSettings elastic;
  std::optional<EarlyStoppingSettings> early_stopping;
};

/// Reads `init`.
InitialFile read_initial_file(ConfigSection& root);
/// Reads `ema`, which is off where it is not given.
std::optional<AverageSettings> read_average(ConfigSection& root,
                                            const OptimizerSettings& optimizer);
/// Reads `lookahead`, which is off where it is not given.
std::optional<LookaheadSettings> read_lookahead(ConfigSection& root,
                                                const OptimizerSettings& optimizer,
                                                const SyncSettings& sync);

}  // namespace starling
