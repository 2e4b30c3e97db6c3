#pragma once

#include "apps/trainer/config/train_config.h"
#include "comm/planner/predict.h"
#include "core/backend.h"

namespace starling {

/// The tensors of a step, as if each took as much of the backward pass as every other; times are 0.
StepModel untimed_step(const TrainConfig& config, const ShapeTrace& trace);
/// How long this rank's computation of a step takes, and when each gradient is ready: the median of a few passes over made-up samples with
/// weights of their own. Nothing of the training is touched; the model has no memory afterwards.
StepModel time_passes(TrainConfig& config, const ShapeTrace& trace, Backend& backend);

}  // namespace starling
