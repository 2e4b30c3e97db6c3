#pragma once

#include <optional>
#include <string>

#include "apps/training/config/train_config.h"
#include "comm/planner/predict.h"

namespace starling {

/// The tensors of a step, each as long in the backward pass as every other; times are 0. An
/// update's products (Muon's) reach what an H200's do where `device` is cuda, else 100 GFLOP/s.
StepModel untimed_step(const TrainConfig& config, const ShapeTrace& trace);
/// Bytes that ranks send in a step, the mean, by the algorithm's plan; what a neighbour reads where
/// it lies is sent, too.
struct StepTraffic {
  double all = 0.0;          ///< of all ranks together
  double out_of_host = 0.0;  ///< what leaves the busiest host
};
/// None for one rank, where the plan does not say, and while the topology is not chosen.
std::optional<StepTraffic> step_traffic(const TrainConfig& config, const ShapeTrace& trace,
                                        const RankLayout& site, const AlgorithmPlan& algorithm,
                                        const Topology* topology);
/// Arithmetic of the products that a parameter's update makes of it as a whole matrix.
double matrix_flops(const TrainConfig& config, const Parameter& parameter);

/// A line for each part of the run whose ranks exchange every few steps: bytes, seconds on the
/// network, how much of them computing hides, and what it costs in learning. `network`: --network,
/// Gbit/s of a host's link or a file of `starling-topo measure`. `step_seconds`: 0: unknown.
std::string outer_steps_text(const TrainConfig& config, const RankLayout& site,
                             const ShapeTrace& trace, const std::string& network,
                             double step_seconds);

}  // namespace starling
