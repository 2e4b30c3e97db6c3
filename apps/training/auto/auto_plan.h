#pragma once

#include <string>

#include "apps/training/config/train_config.h"
#include "apps/training/estimates/step_model.h"
#include "comm/planner/predict.h"
#include "comm/transport.h"
#include "core/backend.h"

namespace starling {

/// Settles what a config leaves to measurement (`"topology": {"type": "auto"}`, `"bucket_mb":
/// "auto"`): times trial passes and the network on the real ranks, predicts, and takes rank 0's
/// choice. With replicas it is between these, measured with the parts that their ranks exchange.
/// The choice goes into the resolved config. Returns the lines to print. Collective.
std::string choose_by_measurement(TrainConfig& config, const RankLayout& site,
                                  const ShapeTrace& trace, Backend& backend, Transport& transport);
/// Takes what a checkpoint (`source`) says was chosen: a run continues as it began.
void adopt_choice(TrainConfig& config, const RankLayout& site, const nlohmann::json& saved_config,
                  const std::string& source);

/// The median time of a few passes over made-up samples, with when each gradient is ready; and how
/// fast the products of an update are. The model has no memory afterwards.
StepModel time_passes(TrainConfig& config, const ShapeTrace& trace, Backend& backend);

}  // namespace starling
