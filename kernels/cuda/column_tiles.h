#pragma once

#include <algorithm>

#include "core/error.h"
#include "core/tensor.h"
#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/runtime.h"

// How kernels that work per channel cover a matrix [rows, channels]: a block takes a tile of columns and one part of the rows; a thread
// takes one group of neighbouring channels and every n-th row, so that what belongs to a channel stays in its registers and a warp reads
// whole rows. Sums over rows go from threads to the block (sum_over_rows), and over the parts in a second kernel, both in a fixed order.
namespace starling::cuda {

constexpr int kColumnThreads = 256;

struct ColumnTiles {
  Index rows = 0, channels = 0;
  Index part_rows = 0;  ///< rows of a part; the last may have fewer
  int width = 1;        ///< threads side by side, a power of two up to 32; the others take other rows
  unsigned tiles = 1, parts = 1;

  Dim3 grid() const { return {tiles, parts, 1}; }
  STARLING_HD Index rows_of(Index part) const {
    const Index left = rows - part * part_rows;
    return left < part_rows ? left : part_rows;
  }
};

/// Tiles for groups of `group` channels, with one wave of blocks and at least four rows per thread where there are as many.
inline ColumnTiles column_tiles(Index rows, Index channels, int group, int multiprocessors) {
  constexpr Index kRowsPerThread = 4, kBlocksPerMultiprocessor = 4;
  ColumnTiles t{.rows = rows, .channels = channels};
  const Index groups = (channels + group - 1) / group;
  while (t.width < kWarp && t.width < groups) t.width *= 2;
  t.tiles = static_cast<unsigned>((groups + t.width - 1) / t.width);
  const Index step = kColumnThreads / t.width * kRowsPerThread;
  const Index most = std::max<Index>(1, std::max(multiprocessors, 1) * kBlocksPerMultiprocessor / t.tiles);
  t.part_rows = std::max<Index>(1, ((rows + most - 1) / most + step - 1) / step) * step;
  t.parts = static_cast<unsigned>(std::max<Index>(1, (rows + t.part_rows - 1) / t.part_rows));
  return t;
}

/// kSize neighbouring numbers, loaded and stored at once.
template <class T, int kSize>
struct alignas(kSize * sizeof(T)) Group {
  T v[kSize];
};
template <class T, int kSize>
__device__ __forceinline__ Group<T, kSize> load_group(const T* from) {
  return *reinterpret_cast<const Group<T, kSize>*>(from);
}
template <class T, int kSize>
__device__ __forceinline__ void store_group(T* to, const Group<T, kSize>& group) {
  *reinterpret_cast<Group<T, kSize>*>(to) = group;
}

/// Whether all pointers (null counts) allow 16-byte loads.
template <class... P>
bool aligned16(const P*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

/// Where a thread works.
struct ColumnPlace {
  Index channel = 0;           ///< the first of its group
  Index first = 0, count = 0;  ///< its first row, and how many it has, `step` rows apart
  int step = 1;
  bool inside = false;  ///< false for threads past the last channel: they only take part in barriers
};
template <int kSize>
__device__ __forceinline__ ColumnPlace column_place(const ColumnTiles& t, Index part) {
  ColumnPlace place;
  const int row = static_cast<int>(threadIdx.x) / t.width;
  place.channel = (Index{blockIdx.x} * t.width + static_cast<int>(threadIdx.x) % t.width) * kSize;
  place.inside = place.channel < t.channels;
  place.step = kColumnThreads / t.width;
  place.first = part * t.part_rows + row;
  const Index rows = t.rows_of(part);
  place.count = place.inside && rows > row ? (rows - row + place.step - 1) / place.step : 0;
  return place;
}

/// Sums each value over the threads that work on the same channels, `width` threads apart; the first `width` threads get the result.
/// `shared` has kValues * kThreads elements.
template <int kThreads, int kValues, class C>
__device__ inline void sum_over_rows(C (&value)[kValues], C* shared, int width) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int v = 0; v < kValues; ++v) shared[v * kThreads + thread] = value[v];
  for (int half = kThreads / 2; half >= width; half /= 2) {
    __syncthreads();
    if (thread < half) {
#pragma unroll
      for (int v = 0; v < kValues; ++v) {
        value[v] += shared[v * kThreads + thread + half];
        shared[v * kThreads + thread] = value[v];
      }
    }
  }
}

/// The two sums of each channel of a group, for combine_sums(): kSize first sums, then kSize second ones, from the threads that have them.
template <int kSize, class C>
__device__ __forceinline__ void store_partial(const C (&sums)[2 * kSize], C* partial, Index part, const ColumnTiles& t,
                                              const ColumnPlace& place) {
  if (!place.inside || static_cast<int>(threadIdx.x) >= t.width) return;
  C* out = partial + 2 * part * t.channels + place.channel;
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    out[j] = sums[j];
    out[t.channels + j] = sums[kSize + j];
  }
}

// The second kernel's blocks: 32 channels, and 16 threads for each that share the parts.
constexpr int kCombineColumns = 32, kCombineThreads = 512;

struct CombinePlace {
  Index channel = 0;
  int first = 0, step = kCombineThreads / kCombineColumns;  ///< parts
  bool inside = false, owner = false;                       ///< the owner of a channel has its sums in the end
};
__device__ __forceinline__ CombinePlace combine_place(Index channels) {
  CombinePlace place;
  const int thread = static_cast<int>(threadIdx.x);
  place.channel = Index{blockIdx.x} * kCombineColumns + thread % kCombineColumns;
  place.first = thread / kCombineColumns;
  place.inside = place.channel < channels;
  place.owner = place.inside && place.first == 0;
  return place;
}
inline unsigned combine_blocks(Index channels) { return static_cast<unsigned>((channels + kCombineColumns - 1) / kCombineColumns); }

/// Two sums per channel over the partial sums [parts][2][channels]; owners have them in `sum`. `shared` has 2 * kCombineThreads elements.
template <class C>
__device__ inline void combine_sums(const C* partial, const ColumnTiles& t, const CombinePlace& place, double (&sum)[2], double* shared) {
  sum[0] = sum[1] = 0.0;
  if (place.inside) {
#pragma unroll 4
    for (Index part = place.first; part < t.parts; part += place.step) {
      sum[0] += static_cast<double>(partial[2 * part * t.channels + place.channel]);
      sum[1] += static_cast<double>(partial[(2 * part + 1) * t.channels + place.channel]);
    }
  }
  sum_over_rows<kCombineThreads>(sum, shared, kCombineColumns);
}

/// Rows (the product of all but the last dimension) and channels of x.
struct RowsAndChannels {
  Index rows = 0, channels = 0;
};
inline RowsAndChannels rows_and_channels(const Tensor& x, const char* operation) {
  require(x && x.shape().rank() >= 2 && x.shape().back() > 0, "cuda", "{}: x must have two or more dimensions", operation);
  return {x.elements() / x.shape().back(), x.shape().back()};
}

}  // namespace starling::cuda
