#pragma once

// The GPU side of optimizers and operations, for .cu files: STARLING_CUDA_RULE makes the kernels of
// an optimizer's rule, STARLING_CUDA_POINTWISE that of a pointwise function, `cuda::launch_own`
// starts a kernel of one's own.

#include "kernels/cuda/operations/pointwise_function.h"
#include "kernels/cuda/operations/update_kernel.h"
#include "kernels/cuda/runtime/launch.h"
