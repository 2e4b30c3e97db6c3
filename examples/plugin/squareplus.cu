// The function's GPU side: a kernel from the same struct. Left out where there is no nvcc.
#include "squareplus.h"

#include <starling/cuda.h>

STARLING_CUDA_POINTWISE(squareplus, mine::Squareplus)
