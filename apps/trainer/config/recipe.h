#pragma once

#include "apps/trainer/config/train_config.h"
#include "core/config.h"

// Keys of how a model is trained that stand beside data, model, optimizer and algorithm.
namespace starling {

/// `init`
void read_initial_file(ConfigSection& root, TrainConfig& config);
/// `ema`, off where it is not given. Once the optimizer is known.
void read_average(ConfigSection& root, TrainConfig& config);
/// `lookahead`, off where it is not given. Once the algorithms are known.
void read_lookahead(ConfigSection& root, TrainConfig& config);
/// `evaluate.tta`, once the data set is known.
void read_views(ConfigSection& evaluate, TrainConfig& config);
/// `sync.batch_norm`, once the model is known.
void read_batch_norm(ConfigSection& sync, TrainConfig& config, int ranks);

}  // namespace starling
