#pragma once

#include "apps/training/config/options.h"
#include "apps/training/config/train_config.h"
#include "comm/world.h"

namespace starling {

/// Opens the config's data set, with the test share of the model under test, and checks what
/// depends on its contents.
void open_data(const TrainOptions& options, TrainConfig& config, const RankLayout& site);

/// Checks that this rank can write the files that config keys name outside the run's folder, now
/// rather than after training. What is there stays as it is.
void check_outputs(const TrainConfig& config, bool first_rank);

/// Checks what a run begins with: the file of initial values, from which it takes what goes on to
/// the run's own model files, and the prompt of its tests. The data set is open. On one rank.
void check_start(TrainConfig& config);

/// Checks whether training could begin, or go on with --resume, and changes no file. Collective.
void check_beginning(const TrainOptions& options, TrainConfig& config, const RankLayout& site,
                     World& world);

}  // namespace starling
