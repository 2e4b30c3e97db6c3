#pragma once

#include <cstdint>

#include "apps/training/config/train_config.h"
#include "apps/training/state/checkpoint.h"
#include "comm/world.h"
#include "core/safetensors.h"
#include "topology/topology.h"

namespace starling {

/// This rank's state in the newest checkpoint, starting with `step`, that is intact on all ranks;
/// sets `step` to its step. If another number of ranks made it (`elastic`), it is their mean, and
/// the config's stretches are extended. Damaged checkpoints are renamed, unless nothing may be
/// changed. Collective.
SafetensorsFile read_newest_state(const CheckpointFolder& checkpoints, bool elastic,
                                  const RankLayout& site, World& world, std::int64_t& step,
                                  TrainConfig& config, bool sets_aside = true);

}  // namespace starling
