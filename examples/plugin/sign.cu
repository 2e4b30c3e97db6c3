// The optimizer's GPU side: kernels from the same rule. Left out where there is no nvcc.
#include "sign.h"

#include "kernels/cuda/operations/update_kernel.h"

STARLING_CUDA_RULE(sign, mine::Sign)
