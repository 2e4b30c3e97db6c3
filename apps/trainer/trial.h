#pragma once

#include "apps/trainer/shape_trace.h"
#include "apps/trainer/train_config.h"
#include "comm/planner/predict.h"
#include "core/backend.h"

namespace starling {

/// How long this rank's computation of a step takes, and when each gradient is ready: the median of a few passes over made-up images with
/// weights of their own. Nothing of the training is touched; the model has no memory afterwards.
/// The tensors of a step, as if each took as much of the backward pass as every other; times are 0.
StepModel untimed_step(const TrainConfig& config, const ShapeTrace& trace);
StepModel time_passes(TrainConfig& config, const ShapeTrace& trace, Backend& backend);

}  // namespace starling
