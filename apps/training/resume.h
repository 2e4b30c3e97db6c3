#pragma once

#include <cstdint>

#include "apps/training/config/train_config.h"
#include "apps/training/state/checkpoint.h"
#include "comm/world.h"
#include "core/safetensors.h"
#include "topology/topology.h"

namespace starling {

/// This rank's state in the newest checkpoint that is whole on all ranks, whose step `step`
/// becomes; from `step` on, older ones are tried. Where another number of ranks made it
/// (`elastic`), it is the mean of what they saved, and the config's stretches go on with this
/// number. Damaged ones get another name, unless nothing is to be changed. Collective.
SafetensorsFile read_newest_state(const CheckpointFolder& checkpoints, bool elastic,
                                  const RankLayout& site, World& world, std::int64_t& step,
                                  TrainConfig& config, bool sets_aside = true);

}  // namespace starling
