#pragma once

#include "apps/training/config/options.h"
#include "apps/training/config/train_config.h"
#include "comm/world.h"

namespace starling {

/// Opens the config's data set, with the test share of the model under test, and checks what
/// depends on its contents.
void open_data(const TrainOptions& options, TrainConfig& config, const RankLayout& site);

/// Checks, before training, that this rank can write the files of config keys outside the run's
/// folder. Does not change existing files.
void check_outputs(const TrainConfig& config, bool first_rank);

/// Checks the file of initial values, whose metadata it keeps for the run's model files, and the
/// prompt of tests. The data set must be open. Called on one rank.
void check_start(TrainConfig& config);

/// Checks whether training could start, or continue with --resume, without changing files.
/// Collective.
void check_beginning(const TrainOptions& options, TrainConfig& config, const RankLayout& site,
                     World& world);

}  // namespace starling
