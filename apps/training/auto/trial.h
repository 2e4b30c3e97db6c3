#pragma once

#include <optional>

#include "apps/training/config/train_config.h"
#include "comm/planner/predict.h"
#include "core/backend.h"

namespace starling {

/// The tensors of a step, as if each took as much of the backward pass as every other; times are 0.
/// The products of an update (Muon's) are assumed to reach what an H200's do where `device` is
/// cuda, and 100 GFLOP/s elsewhere.
StepModel untimed_step(const TrainConfig& config, const ShapeTrace& trace);
/// Bytes that all ranks together send each other in a step of an algorithm, the mean, by its plan:
/// the same whatever carries them, and what a neighbour reads where it lies is sent, too. None for
/// one rank, and where the plan does not say what is exchanged.
std::optional<double> step_traffic(const TrainConfig& config, const ShapeTrace& trace,
                                   const RankLayout& site, const AlgorithmPlan& algorithm,
                                   const Topology* topology);
/// How long this rank's computation of a step takes, and when each gradient is ready: the median of
/// a few passes over made-up samples with weights of their own; and how fast the products of an
/// update are. Nothing of the training is touched; the model has no memory afterwards.
StepModel time_passes(TrainConfig& config, const ShapeTrace& trace, Backend& backend);

}  // namespace starling
