#pragma once

#include "kernels/gpu_update.h"

// The fused update on GPUs: update_kernel.h is the kernel of any rule, update.cu has the built-in
// rules' and CudaBackend::update.
namespace starling::cuda {

/// The launcher of a built-in rule; null for other rules.
GpuUpdateLauncher builtin_update(const OptimizerRule& rule);

}  // namespace starling::cuda
