#pragma once

#include <optional>
#include <string>

#include "apps/training/config/train_config.h"
#include "comm/planner/predict.h"

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
/// Arithmetic of the products that a parameter's update makes of it as a whole matrix.
double matrix_flops(const TrainConfig& config, const Parameter& parameter);

/// A line for each part of the run whose ranks exchange every few steps: bytes, seconds on the
/// network, how much of them computing hides, and what it costs in learning. `network`: of
/// --network, which is the Gbit/s of a host's link or a file of `starling-topo measure`.
/// `step_seconds`: of a step's computation; 0: unknown.
std::string outer_steps_text(const TrainConfig& config, const RankLayout& site,
                             const ShapeTrace& trace, const std::string& network,
                             double step_seconds);

}  // namespace starling
