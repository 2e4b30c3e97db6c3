#pragma once

#include "apps/training/config/train_config.h"

namespace starling {

/// `--check-gradients`: compares what each layer of the model, and the loss, says of its gradients
/// with central differences in fp64, along random directions: in its input and in its parameters.
/// Each layer runs by itself on what it gets in a training pass over a few samples, moved a little,
/// so that no maximum is a tie; with the same seed every time, so that dropout drops the same. The
/// data set is open. `print`: one line a layer goes to stdout. Error(kDiverged) with the first
/// layer that is off by more than kGradientTolerance.
void check_gradients(TrainConfig& config, Backend& backend, bool print);

inline constexpr double kGradientTolerance = 1e-5;  ///< of the gradient's norm

}  // namespace starling
