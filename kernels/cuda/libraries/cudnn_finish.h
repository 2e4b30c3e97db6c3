#pragma once

#include "core/operations/attention.h"
#include "core/tensor.h"
#include "kernels/cuda/runtime/runtime.h"

// Small steps that cuDNN's graphs cannot do.
namespace starling::cuda {

/// to = from, or to += from if `accumulate`; `to` is fp32, `from` fp32 or low precision.
void take_gradient(const Tensor& from, const Tensor& to, bool accumulate, StreamHandle stream);

/// For queries whose keys are all masked: y = 0, lse = +infinity.
void clear_masked_queries(const AttentionForward& args, StreamHandle stream);

}  // namespace starling::cuda
