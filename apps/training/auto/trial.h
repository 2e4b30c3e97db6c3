#pragma once

#include "apps/training/estimates/step_model.h"
#include "comm/planner/predict.h"
#include "core/backend.h"

namespace starling {

/// How long this rank's computation of a step takes, and when each gradient is ready: the median of
/// a few passes over made-up samples with weights of their own; and how fast the products of an
/// update are. Nothing of the training is touched; the model has no memory afterwards.
StepModel time_passes(TrainConfig& config, const ShapeTrace& trace, Backend& backend);

}  // namespace starling
