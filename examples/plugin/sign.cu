// The optimizer's GPU side: kernels from the same rule. Left out where there is no nvcc.
#include "sign.h"

#include <starling/cuda.h>

STARLING_CUDA_RULE(sign, mine::Sign)
