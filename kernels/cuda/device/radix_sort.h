#pragma once

#include <cstdint>
#include <utility>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/last_block.h"
#include "kernels/cuda/runtime/launch.h"

// Radix sort: sorts indices 0 … n - 1 by a key with 8 bits per pass. Stable, and deterministic,
// since no result depends on the order of atomic operations. The cost is proportional to n times
// the key's bits.
namespace starling::cuda {

constexpr int kDigits = 256;  ///< of a pass, and indices per block
static_assert(kDigits == kThreads);

/// The order of indices before a pass.
struct Positions {
  const std::int32_t* order;  ///< null: 0, 1, 2, …
  __device__ std::int32_t operator()(Index i) const {
    return order ? order[i] : static_cast<std::int32_t>(i);
  }
};

/// counts[block][digit]: how many indices the earlier blocks have with this digit, and all blocks
/// with lower ones. Each block counts its own; the last one (last_block.h) sums them, a thread for
/// each digit.
template <class Key>
__global__ void __launch_bounds__(kDigits) count_digits(Key key, int shift, Positions positions,
                                                        Index n, int* counts, unsigned* arrivals) {
  __shared__ int of_digit[kDigits];
  of_digit[threadIdx.x] = 0;
  __syncthreads();
  const Index i = Index{blockIdx.x} * kDigits + threadIdx.x;
  if (i < n) atomicAdd(&of_digit[key.digit(positions(i), shift)], 1);
  __syncthreads();
  counts[Index{blockIdx.x} * kDigits + threadIdx.x] = of_digit[threadIdx.x];
  if (!last_block(arrivals, gridDim.x)) return;
  const Index end = Index{gridDim.x} * kDigits;
  int sum = 0;
#pragma unroll 8
  for (Index c = threadIdx.x; c < end; c += kDigits) sum += counts[c];
  of_digit[threadIdx.x] = sum;
  __syncthreads();
  int before = 0;
  for (unsigned t = 0; t < threadIdx.x; ++t) before += of_digit[t];
#pragma unroll 8
  for (Index c = threadIdx.x; c < end; c += kDigits) {
    const int count = counts[c];
    counts[c] = before;
    before += count;
  }
}

/// Stable counting sort by one digit.
template <class Key>
__global__ void __launch_bounds__(kDigits)
    place_positions(Key key, int shift, Positions positions, Index n, const int* counts,
                    std::int32_t* to) {
  __shared__ unsigned digits[kDigits];
  const Index i = Index{blockIdx.x} * kDigits + threadIdx.x;
  const std::int32_t position = i < n ? positions(i) : 0;
  const unsigned digit = i < n ? key.digit(position, shift) : unsigned{kDigits};
  digits[threadIdx.x] = digit;
  __syncthreads();
  if (i >= n) return;
  int before = counts[Index{blockIdx.x} * kDigits + digit];
  for (unsigned t = 0; t < threadIdx.x; ++t) before += digits[t] == digit ? 1 : 0;
  to[before] = position;
}

/// Indices sorted by a key: `bits` is its number of bits, `digit(index, shift)` the 8 bits from
/// `shift` on.
template <class Key>
Tensor sorted(CudaBackend& backend, Index n, const Key& key) {
  const Index blocks = (n + kDigits - 1) / kDigits;
  Tensor from, to = backend.scratch(n, DType::kInt32), other;
  const Tensor counts = backend.scratch(kDigits * blocks, DType::kInt32);
  Positions positions{nullptr};
  for (int shift = 0; shift < key.bits; shift += 8) {
    if (shift > 0) {
      other = from ? from : backend.scratch(n, DType::kInt32);
      from = std::exchange(to, other);
      positions.order = from.data<std::int32_t>();
    }
    const Launch how{{static_cast<unsigned>(blocks)}, {kDigits}, backend.handle()};
    launch(count_digits<Key>, how, key, shift, positions, n, counts.data<int>(),
           backend.arrivals());
    launch(place_positions<Key>, how, key, shift, positions, n, counts.data<int>(),
           to.data<std::int32_t>());
  }
  return to;
}

}  // namespace starling::cuda
