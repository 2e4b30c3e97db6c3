#pragma once

#include "core/tensor.h"
#include "kernels/cuda/runtime.h"

// The small steps around cuDNN's graphs that no graph does.
namespace starling::cuda {

/// y[R,C] += bias[C] (fp32, or y's own type).
void add_channel_bias(const Tensor& y, const Tensor& bias, StreamHandle stream);

/// to = from, or to += from; `to` is fp32, `from` fp32 or low precision.
void take_gradient(const Tensor& from, const Tensor& to, bool accumulate, StreamHandle stream);

/// fp16 copies of a batch norm's scale and shift, for engines that take no fp32: rounded, and what is too large becomes the largest number
/// (NaN stays).
void narrow_scales(const Tensor& scale, const Tensor& shift, const Tensor& narrow_scale, const Tensor& narrow_shift, StreamHandle stream);

/// What a training batch norm of `rows` values a channel leaves behind besides its output: the running statistics, moved by `momentum`
/// towards the batch's mean and unbiased variance (found from the saved 1/sqrt(variance + eps): exact to rounding of variance + eps, which
/// is all that running statistics are used for), and the count of batches. Each may be missing.
struct RunningStatistics {
  const float *mean = nullptr, *inv_std = nullptr;  ///< of this batch
  float *running_mean = nullptr, *running_var = nullptr;
  std::int64_t* batches_tracked = nullptr;
  std::int64_t channels = 0, rows = 0;
  double eps = 0.0, momentum = 0.0;
};
void move_running_statistics(const RunningStatistics& statistics, StreamHandle stream);

}  // namespace starling::cuda
