#pragma once

#include "apps/trainer/config/train_config.h"
#include "comm/planner/predict.h"
#include "core/backend.h"

namespace starling {

/// The tensors of a step, as if each took as much of the backward pass as every other; times are 0.
/// The products of an update (Muon's) are assumed to reach what an H200's do where `device` is
/// cuda, and 100 GFLOP/s elsewhere.
StepModel untimed_step(const TrainConfig& config, const ShapeTrace& trace);
/// How long this rank's computation of a step takes, and when each gradient is ready: the median of
/// a few passes over made-up samples with weights of their own; and how fast the products of an
/// update are. Nothing of the training is touched; the model has no memory afterwards.
StepModel time_passes(TrainConfig& config, const ShapeTrace& trace, Backend& backend);

}  // namespace starling
