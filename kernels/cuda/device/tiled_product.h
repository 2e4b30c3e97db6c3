#pragma once

#include <algorithm>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/activations.h"

// The tiled product of the backend's own matmul and convolutions: c[M,N] = a[M,K] · b[K,N], where
// `A` and `B` define how elements are loaded. A block computes 64×64 elements of c, a thread 4×4,
// in steps of 16 along K through shared memory. If M and N are small and K is large, K is split
// between blocks, whose partial sums a second kernel adds in a fixed order.
namespace starling::cuda {

constexpr int kTile = 64, kStep = 16, kProductThreads = 256, kPerThread = 4;
/// Length of a tile's row in shared memory: padded against bank conflicts, still aligned
constexpr int kTileLine = kTile + 4;

struct ProductSizes {
  Index m = 0, n = 0, k = 0;
  Index split = 0;  ///< K range of a block, a multiple of kStep
  int splits = 1, groups = 1;
};

/// The four elements of a tile that a thread loads: along K or across it, whichever is contiguous
/// in memory.
struct TilePlace {
  int across = 0, k = 0;            ///< of the first element
  int across_step = 0, k_step = 0;  ///< from each element to the next
};
STARLING_HD TilePlace tile_place(int thread, bool along_k) {
  if (along_k) return {thread / kStep, thread % kStep, kProductThreads / kStep, 0};
  return {thread % kTile, thread / kTile, 0, kProductThreads / kTile};
}

/// A matrix in memory as one side of a product: element (i, k) is data[i * across_step + k *
/// k_step], and one of the steps is 1.
template <class T>
struct PlainMatrix {
  const T* data;
  Index across_step, k_step;
  Index next;  ///< elements to the matrix of the next product of a batch

  STARLING_HD bool along_k() const { return k_step == 1; }

  /// One thread's share of the tile whose first row (for b: column) is `first`.
  struct State {
    /// The first element's place, and rows from it to the end; elements to the next row
    Index base, left, step;
    int k0, k_step, across_step;

    __device__ State(const PlainMatrix& matrix, Index group, Index first, const TilePlace& place,
                     Index size)
        : base(group * matrix.next + (first + place.across) * matrix.across_step),
          left(size - first - place.across),
          step(place.across_step * matrix.across_step),
          k0(place.k),
          k_step(place.k_step),
          across_step(place.across_step) {}
    __device__ void load(const PlainMatrix& matrix, Index k, Index end,
                         Compute<T> (&to)[kPerThread]) const {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        const Index at = k + k0 + i * k_step;
        const bool inside = i * across_step < left && at < end;
        to[i] = inside ? static_cast<Compute<T>>(matrix.data[base + i * step + at * matrix.k_step])
                       : Compute<T>(0);
      }
    }
  };
};

/// Writes results to c[group][row * line + column]: with the column's bias added, or added to the
/// previous value. `relu` preserves NaN.
template <class C, class Out>
struct ProductResult {
  Out* c;
  const C* bias;
  Index line, group_offset;  ///< of c
  bool accumulate;
  bool relu = false;
  Index bias_groups = 1;  ///< 1: each group has its own N bias values; 0: all groups share them

  STARLING_HD void store(Index row, Index column, Index group, Index n, C value) const {
    Out& to = c[row * line + column + group * group_offset];
    if (bias) value += bias[bias_groups * group * n + column];
    if (accumulate) value += static_cast<C>(to);
    if (relu) value = math::relu(value);
    to = static_cast<Out>(value);
  }
};

template <class C, class Out, class A, class B>
__global__ void __launch_bounds__(kProductThreads, sizeof(C) == 8 ? 1 : 2)
    tiled_product(A a, B b, ProductSizes s, ProductResult<C, Out> result, C* __restrict__ partial) {
  __shared__ Pack<C> tile_a[kStep * kTileLine / Pack<C>::kSize],
      tile_b[kStep * kTileLine / Pack<C>::kSize];
  C* lines_a = tile_a[0].v;
  C* lines_b = tile_b[0].v;
  const int thread = static_cast<int>(threadIdx.x), tx = thread % 16, ty = thread / 16;
  const Index tiles_m = (s.m + kTile - 1) / kTile, tiles = tiles_m * ((s.n + kTile - 1) / kTile);
  const Index group = blockIdx.z, part = blockIdx.y;
  const Index first_k = part * s.split, end_k = min(s.k, first_k + s.split);
  for (Index tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const Index row = tile % tiles_m * kTile, column = tile / tiles_m * kTile;
    const TilePlace place_a = tile_place(thread, a.along_k()),
                    place_b = tile_place(thread, b.along_k());
    typename A::State state_a(a, group, row, place_a, s.m);
    typename B::State state_b(b, group, column, place_b, s.n);
    C sums[kPerThread][kPerThread] = {};
    C next_a[kPerThread], next_b[kPerThread];
    state_a.load(a, first_k, end_k, next_a);
    state_b.load(b, first_k, end_k, next_b);
    for (Index k = first_k; k < end_k; k += kStep) {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        lines_a[(place_a.k + i * place_a.k_step) * kTileLine + place_a.across +
                i * place_a.across_step] = next_a[i];
        lines_b[(place_b.k + i * place_b.k_step) * kTileLine + place_b.across +
                i * place_b.across_step] = next_b[i];
      }
      __syncthreads();
      if (k + kStep < end_k) {  // loaded while this step is computed
        state_a.load(a, k + kStep, end_k, next_a);
        state_b.load(b, k + kStep, end_k, next_b);
      }
#pragma unroll 4
      for (int step = 0; step < kStep; ++step) {
        constexpr int kPacks = kPerThread / Pack<C>::kSize;
        Pack<C> left[kPacks], right[kPacks];
#pragma unroll
        for (int i = 0; i < kPacks; ++i) {
          left[i] = tile_a[(step * kTileLine + ty * kPerThread) / Pack<C>::kSize + i];
          right[i] = tile_b[(step * kTileLine + tx * kPerThread) / Pack<C>::kSize + i];
        }
#pragma unroll
        for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
          for (int j = 0; j < kPerThread; ++j) {
            sums[i][j] += left[i / Pack<C>::kSize].v[i % Pack<C>::kSize] *
                          right[j / Pack<C>::kSize].v[j % Pack<C>::kSize];
          }
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
      for (int j = 0; j < kPerThread; ++j) {
        const Index r = row + ty * kPerThread + i, c = column + tx * kPerThread + j;
        if (r >= s.m || c >= s.n) continue;
        if (partial) {
          partial[((part * s.groups + group) * s.m + r) * s.n + c] = sums[i][j];
        } else {
          result.store(r, c, group, s.n, sums[i][j]);
        }
      }
    }
  }
}

/// Adds the partial sums of a split K.
template <class C, class Out>
__global__ void __launch_bounds__(kProductThreads, 4)
    add_parts(const C* __restrict__ partial, ProductSizes s, ProductResult<C, Out> result) {
  const Index area = s.m * s.n, all = area * s.groups;
  for (Index i = Index{blockIdx.x} * kProductThreads + threadIdx.x; i < all;
       i += Index{gridDim.x} * kProductThreads) {
    C sum = C(0);
#pragma unroll 4
    for (int part = 0; part < s.splits; ++part) sum += partial[part * all + i];
    const Index group = i / area, rest = i - group * area, row = rest / s.n;
    result.store(row, rest - row * s.n, group, s.n, sum);
  }
}

/// Launches the product. A and B are kernel arguments, structs of pointers and sizes, with
/// along_k() and a State: see PlainMatrix.
template <class C, class Out, class A, class B>
void launch_product(CudaBackend& backend, const A& a, const B& b, ProductSizes s,
                    const ProductResult<C, Out>& result) {
  if (s.m == 0 || s.n == 0 || s.groups == 0) return;
  const Index tiles = ((s.m + kTile - 1) / kTile) * ((s.n + kTile - 1) / kTile);
  // Enough blocks for every multiprocessor, each with at least some steps.
  constexpr Index kLeast = 16 * kStep, kMostSplits = 256;
  const Index wanted = 2 * std::max(backend.info().multiprocessors, 1) / (tiles * s.groups);
  const Index splits = std::clamp<Index>(std::min(wanted, s.k / kLeast), 1, kMostSplits);
  s.split = std::max<Index>(1, ((s.k + splits - 1) / splits + kStep - 1) / kStep) * kStep;
  s.splits = static_cast<int>(std::max<Index>(1, (s.k + s.split - 1) / s.split));
  require(s.groups <= 65535, "cuda",
          "a convolution or product of {} groups; at most 65535 are supported", s.groups);
  Tensor partial;
  if (s.splits > 1) partial = backend.scratch(s.splits * s.m * s.n * s.groups, DTypeOf<C>::value);
  const Dim3 grid{blocks_for(tiles, 1), static_cast<unsigned>(s.splits),
                  static_cast<unsigned>(s.groups)};
  launch(tiled_product<C, Out, A, B>,
         {.grid = grid, .block = {kProductThreads}, .stream = backend.handle()}, a, b, s, result,
         partial ? partial.data<C>() : nullptr);
  if (partial) {
    launch(add_parts<C, Out>,
           {.grid = {blocks_for(s.m * s.n * s.groups, kProductThreads)},
            .block = {kProductThreads},
            .stream = backend.handle()},
           partial.data<C>(), s, result);
  }
}

}  // namespace starling::cuda
