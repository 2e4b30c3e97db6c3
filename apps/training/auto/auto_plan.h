#pragma once

#include <string>

#include "apps/training/config/train_config.h"
#include "comm/transport.h"
#include "core/backend.h"

namespace starling {

/// Settles what a config leaves to measurement (`"topology": {"type": "auto"}`,
/// `"bucket_mb": "auto"`): times trial passes and the network on the real ranks, predicts, and
/// takes rank 0's choice on every rank. The choice goes into the resolved config, its figures into
/// TrainConfig::auto_figures. Returns the lines to print. Collective.
std::string choose_by_measurement(TrainConfig& config, const RankLayout& site,
                                  const ShapeTrace& trace, Backend& backend, Transport& transport);
/// Takes what a checkpoint says was chosen: a run goes on as it began. `source` names the
/// checkpoint in errors.
void adopt_choice(TrainConfig& config, const RankLayout& site, const nlohmann::json& saved_config,
                  const std::string& source);

}  // namespace starling
