#pragma once

#include "kernels/cuda/device/device.h"

// One kernel in place of two: each block leaves its partial results in global memory, and the block
// that arrives last combines them, in a fixed order that does not depend on which one it is.
// CudaBackend::arrivals() has the counters.
namespace starling::cuda {

/// Every thread of a block calls it once the block's partial results are stored. True, for every
/// thread, in the block that arrives last of `blocks`: it sees what all of them stored, with loads
/// that are neither __ldg nor of const __restrict__ memory. The counter is 0 before and, as the
/// increment wraps around, 0 again after the launch.
__device__ inline bool last_block(unsigned* counter, unsigned blocks) {
  __shared__ int last;
  __syncthreads();  // all of the block is stored
  if (blocks == 1) return true;
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    __threadfence();  // makes stores visible before the arrival
    last = atomicInc(counter, blocks - 1) == blocks - 1 ? 1 : 0;
    __threadfence();  // before the loads after the barrier
  }
  __syncthreads();
  return last != 0;
}

}  // namespace starling::cuda
