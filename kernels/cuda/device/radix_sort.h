#pragma once

#include <cstdint>
#include <utility>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
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

/// counts[digit][block]: how often each digit occurs in the block's indices.
template <class Key>
__global__ void __launch_bounds__(kDigits)
    count_digits(Key key, int shift, Positions positions, Index n, int* counts) {
  __shared__ int own[kDigits];
  own[threadIdx.x] = 0;
  __syncthreads();
  const Index i = Index{blockIdx.x} * kDigits + threadIdx.x;
  if (i < n) atomicAdd(&own[key.digit(positions(i), shift)], 1);
  __syncthreads();
  counts[Index{threadIdx.x} * gridDim.x + blockIdx.x] = own[threadIdx.x];
}

/// Exclusive prefix sum of the counts; one block, each thread processes a range.
static __global__ void __launch_bounds__(kThreads) add_up(int* counts, Index n) {
  __shared__ int sums[kThreads];
  const Index each = (n + kThreads - 1) / kThreads, first = min(threadIdx.x * each, n),
              last = min(first + each, n);
  int sum = 0;
  for (Index i = first; i < last; ++i) sum += counts[i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  int before = 0;
  for (unsigned t = 0; t < threadIdx.x; ++t) before += sums[t];
  for (Index i = first; i < last; ++i) {
    const int own = counts[i];
    counts[i] = before;
    before += own;
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
  int before = counts[Index{digit} * gridDim.x + blockIdx.x];
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
    launch(count_digits<Key>, how, key, shift, positions, n, counts.data<int>());
    launch(add_up, {{1}, {kThreads}, backend.handle()}, counts.data<int>(), kDigits * blocks);
    launch(place_positions<Key>, how, key, shift, positions, n, counts.data<int>(),
           to.data<std::int32_t>());
  }
  return to;
}

}  // namespace starling::cuda
