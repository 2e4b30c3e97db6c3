#pragma once

#include "kernels/cuda/device/device.h"

// A reduction in one kernel instead of two: each block stores partial results in global memory, and
// the last block to finish combines them, in a fixed order. CudaBackend::arrivals() provides the
// counters.
namespace starling::cuda {

/// Called by every thread of a block after the block's partial results are stored. Returns true in
/// all threads of the last of `blocks` blocks, which then sees what all blocks stored, but not
/// through __ldg or const __restrict__ pointers. The counter must be 0, and is 0 again afterwards,
/// as the increment wraps around.
__device__ inline bool last_block(unsigned* counter, unsigned blocks) {
  __shared__ int last;
  __syncthreads();  // all threads of the block have stored
  if (blocks == 1) return true;
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    __threadfence();  // makes stores visible before the arrival
    last = atomicInc(counter, blocks - 1) == blocks - 1 ? 1 : 0;
    __threadfence();  // orders loads after the barrier that follows the arrival
  }
  __syncthreads();
  return last != 0;
}

}  // namespace starling::cuda
