#include <algorithm>
#include <cstddef>

#include "core/operations/pointwise.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/operations/plain.h"
#include "kernels/cuda/runtime/launch.h"

// The squared norms of many tensors at once: a step that measures its gradients has one of each
// parameter, and launches would cost more than the sums. Terms and their order are the CPU's.
namespace starling::cuda {
namespace {

constexpr Index kTermBlock = 4096;  ///< elements whose squares are one term
constexpr int kNormUnroll = 8;      ///< loads in flight
/// To a launch: 3 KB of arguments, of 4 KB that every device takes
constexpr int kMostSegments = 128;
constexpr Index kMostThreadBlocks = 132 * 8;

struct Segment {
  const void* data = nullptr;
  Index elements = 0;
  Index first_block = 0;  ///< place of its first block's sum
};
struct Segments {
  Segment of[kMostSegments];
  int count = 0;
  Index blocks = 0;  ///< of all
};

/// Σ of the squares of `count` elements, the same on every lane. Element i belongs to chain i mod
/// 32, chains are summed in their order, then what is left of an incomplete row.
template <class T>
__device__ double sum_of_squares(const T* x, int count) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, rows = count / kWarp;
  const auto square = [](T value) {
    const auto wide = static_cast<double>(value);
    return wide * wide;
  };
  double chain = 0.0;
  int row = 0;
  for (; row + kNormUnroll <= rows; row += kNormUnroll) {
    T values[kNormUnroll];
#pragma unroll
    for (int u = 0; u < kNormUnroll; ++u) values[u] = x[(row + u) * kWarp + lane];
#pragma unroll
    for (int u = 0; u < kNormUnroll; ++u) chain += square(values[u]);
  }
  for (; row < rows; ++row) chain += square(x[row * kWarp + lane]);
  double sum = 0.0;
  for (int i = 0; i < kWarp; ++i) sum += __shfl_sync(0xffffffffu, chain, i);
  for (int i = rows * kWarp; i < count; ++i) sum += square(x[i]);
  return sum;
}

template <class T>
__global__ void block_squares(Segments s, double* sums) {
  const Index warps = Index{gridDim.x} * (kThreads / kWarp);
  for (Index block = Index{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp; block < s.blocks;
       block += warps) {
    int low = 0, high = s.count - 1;  // the last segment that begins at this block or before
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (s.of[middle].first_block <= block) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    const Segment segment = s.of[low];
    const Index offset = (block - segment.first_block) * kTermBlock;
    const int count = static_cast<int>(min(kTermBlock, segment.elements - offset));
    const double sum = sum_of_squares(static_cast<const T*>(segment.data) + offset, count);
    if (threadIdx.x % kWarp == 0) sums[block] = sum;
  }
}

/// Chains of a sum: a segment's term b belongs to chain b mod 32, and chains are added in their
/// order.
constexpr int kChains = 32;

/// totals[segment] (+)= the sum of the segment's terms; a warp to a segment.
__global__ void __launch_bounds__(kThreads)
    add_segments(Segments s, const double* sums, double* totals, bool accumulate) {
  const int segment =
      static_cast<int>(blockIdx.x) * (kThreads / kWarp) + static_cast<int>(threadIdx.x) / kWarp;
  if (segment >= s.count) return;
  const Index first = s.of[segment].first_block,
              last = segment + 1 < s.count ? s.of[segment + 1].first_block : s.blocks;
  double chain = 0.0;
#pragma unroll 8
  for (Index block = first + threadIdx.x % kWarp; block < last; block += kChains)
    chain += sums[block];
  double sum = 0.0;
  for (int i = 0; i < kChains; ++i) sum += __shfl_sync(0xffffffffu, chain, i);
  if (threadIdx.x % kWarp == 0) totals[segment] = accumulate ? totals[segment] + sum : sum;
}

}  // namespace

void squared_norms_of(CudaBackend& backend, std::span<const Tensor> x, double* totals,
                      bool accumulate) {
  for (std::size_t begin = 0; begin < x.size(); begin += kMostSegments) {
    Segments s;
    s.count = static_cast<int>(std::min<std::size_t>(kMostSegments, x.size() - begin));
    for (int k = 0; k < s.count; ++k) {
      const Tensor& tensor = x[begin + static_cast<std::size_t>(k)];
      s.of[k] = {tensor.raw(), tensor.elements(), s.blocks};
      s.blocks += (tensor.elements() + kTermBlock - 1) / kTermBlock;
    }
    const Tensor sums = backend.scratch(std::max<Index>(s.blocks, 1), DType::kFloat64);
    if (s.blocks > 0) {
      const Launch how{{blocks_for(s.blocks, 1, kThreads / kWarp, kMostThreadBlocks)},
                       {kThreads},
                       backend.handle()};
      const auto squares =
          x[0].dtype() == DType::kFloat64 ? block_squares<double> : block_squares<float>;
      launch(squares, how, s, sums.data<double>());
    }
    launch(add_segments, {{blocks_for(s.count, kThreads / kWarp)}, {kThreads}, backend.handle()}, s,
           sums.data<double>(), totals + begin, accumulate);
  }
}

void CudaBackend::issue(const SquaredNorms& args) {
  squared_norms_of(*this, args.x, args.totals.data<double>() + args.first, false);
}

}  // namespace starling::cuda
