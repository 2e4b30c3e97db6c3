#pragma once

#include <cstdint>

#include "apps/training/config/options.h"
#include "apps/training/config/train_config.h"
#include "apps/training/state/checkpoint.h"
#include "comm/world.h"
#include "core/safetensors.h"
#include "topology/topology.h"

namespace starling {

/// Opens the data set, with the test share of the model under test, and checks what depends on it.
void open_data(const TrainOptions& options, TrainConfig& config, const RankLayout& site);

/// Checks, before training, that this rank can write the files outside the run's folder.
void check_outputs(const TrainConfig& config, bool first_rank);

/// Checks the initial values' file, whose metadata it keeps, and the prompt of tests, on one rank.
void check_start(TrainConfig& config);

/// Checks whether training could start, or --resume, without changing files. Collective.
void check_beginning(const TrainOptions& options, TrainConfig& config, const RankLayout& site,
                     World& world);

/// This rank's state in the newest checkpoint, from `step` backwards, that is intact on all ranks;
/// `step` becomes its step. If another number of ranks made it (`elastic`), it is their mean, and
/// the config's stretches are extended. `sets_aside`: renames damaged ones. Collective.
SafetensorsFile read_newest_state(const CheckpointFolder& checkpoints, bool elastic,
                                  const RankLayout& site, World& world, std::int64_t& step,
                                  TrainConfig& config, bool sets_aside = true);

}  // namespace starling
