#pragma once

#include "core/backend.h"

namespace starling {

// Convolutions that carry out parts of a batch norm, put together from the plain convolution and the steps of the batch norm: what a
// backend does where it has no kernel for both at once. Working memory comes from the backend.
void composed_conv2d_forward(Backend& backend, const Conv2dForward& args);
void composed_conv2d_backward_data(Backend& backend, const Conv2dBackwardData& args);
void composed_conv2d_backward_weights(Backend& backend, const Conv2dBackwardWeights& args);

}  // namespace starling
