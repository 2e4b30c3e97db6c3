#pragma once

#include "apps/training/config/train_config.h"

namespace starling {

/// `--check-gradients`: compares the gradients of each layer, and of the loss, with central
/// differences in fp64 along random directions of input and parameters. Each layer runs on its
/// input in a pass over a few samples, slightly moved to avoid ties of maxima, and with a fixed
/// seed for dropout. The data set must be open. Error(kDiverged) names the first that is wrong.
void check_gradients(TrainConfig& config, Backend& backend, bool print);

}  // namespace starling
