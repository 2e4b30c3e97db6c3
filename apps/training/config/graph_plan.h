#pragma once

#include <string>

#include "apps/training/config/train_config.h"
#include "apps/training/device/step_graphs.h"

namespace starling {

/// The graphs of a run's steps. A topology that is still to be chosen counts as none.
GraphPlan plan_graphs(const TrainConfig& config, const RankLayout& site);
/// The line of --dry-run.
std::string graph_text(const TrainConfig& config, const RankLayout& site);

}  // namespace starling
