#pragma once

#include <span>

#include "core/backend.h"
#include "core/operations/attention.h"
#include "core/operations/convolutions.h"
#include "core/operations/products.h"

namespace starling::cuda {

class CudaBackend;

// Own kernels for every shape and dtype, where no library does the work.
void plain_conv2d_forward(CudaBackend& backend, const Conv2dForward& args);
void plain_conv2d_backward_data(CudaBackend& backend, const Conv2dBackwardData& args);
/// Computes dweight alone.
void plain_conv2d_backward_weights(CudaBackend& backend, const Conv2dBackwardWeights& args);
/// Whether the depthwise kernels take a convolution from x to y: every output channel reads its own
/// channel alone. For these the backend's own kernels come before cuDNN.
bool takes_depthwise(const Tensor& x, const Tensor& y, const Window2d& window);
void depthwise_conv2d_forward(CudaBackend& backend, const Conv2dForward& args);
void depthwise_conv2d_backward_data(CudaBackend& backend, const Conv2dBackwardData& args);
/// Computes dweight alone.
void depthwise_conv2d_backward_weights(CudaBackend& backend, const Conv2dBackwardWeights& args);
void plain_matmul(CudaBackend& backend, const Matmul& args);
void plain_attention_forward(CudaBackend& backend, const AttentionForward& args);
void plain_attention_backward(CudaBackend& backend, const AttentionBackward& args);
/// totals[i] = the squared norm of x[i], or it is added there; all fp32 or all fp64.
void squared_norms_of(CudaBackend& backend, std::span<const Tensor> x, double* totals,
                      bool accumulate);
/// Sets every element of x to `value`, rounded or truncated to its dtype.
void fill_numbers(CudaBackend& backend, const Tensor& x, double value);

}  // namespace starling::cuda
