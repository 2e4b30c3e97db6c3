#pragma once

#include "apps/training/config/train_config.h"

namespace starling {

/// `--check-gradients`: compares the gradients of each layer, and of the loss, with central
/// differences in fp64, along random directions of its input and parameters. Each layer is run
/// separately on its input in a training pass over a few samples, slightly perturbed to avoid ties
/// of maxima, and with a fixed seed for dropout. The data set must be open. `print`: writes one
/// line per layer to stdout. Error(kDiverged) with the first layer whose error exceeds
/// kGradientTolerance.
void check_gradients(TrainConfig& config, Backend& backend, bool print);

inline constexpr double kGradientTolerance = 1e-5;  ///< of the gradient's norm

}  // namespace starling
