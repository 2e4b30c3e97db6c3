#pragma once

#include "core/backend.h"

namespace starling::cuda {

class CudaBackend;

// Own kernels for every shape and dtype, where no library does the work.
void plain_conv2d_forward(CudaBackend& backend, const Conv2dForward& args);
void plain_conv2d_backward_data(CudaBackend& backend, const Conv2dBackwardData& args);
/// dweight alone.
void plain_conv2d_backward_weights(CudaBackend& backend, const Conv2dBackwardWeights& args);
void plain_matmul(CudaBackend& backend, const Matmul& args);
/// Sets every element of x to `value`, rounded or truncated to its dtype.
void fill_numbers(CudaBackend& backend, const Tensor& x, double value);

}  // namespace starling::cuda
