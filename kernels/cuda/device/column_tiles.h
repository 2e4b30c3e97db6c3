#pragma once

#include <algorithm>
#include <bit>
#include <type_traits>

#include "core/error.h"
#include "core/tensor.h"
#include "kernels/cuda/device/block_reduce.h"
#include "kernels/cuda/device/last_block.h"
#include "kernels/cuda/runtime/runtime.h"

// How kernels that work per channel cover a matrix [rows, channels]: a block takes a tile of columns and one part of the rows; a thread
// takes one group of neighbouring channels and every n-th row, so that what belongs to a channel stays in its registers and a warp reads
// whole lines of 128 bytes. Sums over rows go from threads to the block (sum_over_rows), and over the parts in the tile's block that
// arrives last (combine_parts), both in a fixed order.
namespace starling::cuda {

/// One block of so many threads, or two, fill a multiprocessor: few parts, so that there is little to combine.
constexpr int kColumnThreads = 512;

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

/// Tiles for groups of `group` channels, with as many blocks as the device holds at once (`blocks`, at most 2 · arrivals, the counters that
/// there are for tiles) and at least two rows per thread where there are as many.
inline ColumnTiles column_tiles(Index rows, Index channels, int group, Index blocks, Index arrivals) {
  constexpr Index kRowsPerThread = 2, kMostCombined = 20000;
  ColumnTiles t{.rows = rows, .channels = channels};
  const Index groups = (channels + group - 1) / group, most_blocks = std::clamp<Index>(blocks, 1, 2 * arrivals);
  while (t.width < kWarp && t.width < groups) t.width *= 2;
  const auto cut = [&] {
    t.tiles = static_cast<unsigned>((groups + t.width - 1) / t.width);
    const Index step = kColumnThreads / t.width * kRowsPerThread, most = std::max<Index>(1, most_blocks / t.tiles);
    t.part_rows = std::max<Index>(1, ((rows + most - 1) / most + step - 1) / step) * step;
    t.parts = static_cast<unsigned>(std::max<Index>(1, (rows + t.part_rows - 1) / t.part_rows));
  };
  cut();
  // Narrower tiles share out what the last blocks combine, down to 128 bytes of a row.
  while (group > 1 && t.width > 8 && Index{2} * t.parts * t.width * group > kMostCombined) {
    t.width /= 2;
    cut();
  }
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
  if constexpr (sizeof(group) == 16) {
    store_pack(to, std::bit_cast<Pack<T>>(group));
  } else {
    *reinterpret_cast<Group<T, kSize>*>(to) = group;
  }
}

/// A group on its way from memory. As whole words: of 16-bit numbers nvcc would keep each in a register of its own.
template <class T, int kSize>
struct Coming {
#if defined(__CUDA_ARCH__)
  using Words = std::conditional_t<sizeof(Group<T, kSize>) == 16, uint4, Group<T, kSize>>;
#else
  using Words = Group<T, kSize>;
#endif
  Words words;
  __device__ __forceinline__ void ask_for(const T* from) { words = *reinterpret_cast<const Words*>(from); }
  __device__ __forceinline__ Group<T, kSize> group() const { return std::bit_cast<Group<T, kSize>>(words); }
};

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

/// Goes over `count` rows, kRows at a time. load.template operator()<kAll>(first, n) asks for rows first … first + n - 1, and
/// work.template operator()<kAll>(what load gave, first, n) takes them; n is kRows where kAll. The next rows are asked for before these
/// are worked on: memory always has something to do. A thread must not write what it reads in another row.
template <int kRows, class Load, class Work>
__device__ __forceinline__ void in_flight(Index count, const Load& load, const Work& work) {
  const int rest = static_cast<int>(count % kRows);
  const Index whole = count - rest;
  if (whole > 0) {
    auto next = load.template operator()<true>(Index{0}, kRows);
#pragma unroll 1
    for (Index first = kRows; first < whole; first += kRows) {
      const auto now = next;
      next = load.template operator()<true>(first, kRows);
      work.template operator()<true>(now, first - kRows, kRows);
    }
    if (rest == 0) {
      work.template operator()<true>(next, whole - kRows, kRows);
    } else {
      const auto now = next;
      next = load.template operator()<false>(whole, rest);
      work.template operator()<true>(now, whole - kRows, kRows);
      work.template operator()<false>(next, whole, rest);
    }
  } else if (rest > 0) {
    work.template operator()<false>(load.template operator()<false>(Index{0}, rest), Index{0}, rest);
  }
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

/// Shared memory of a kernel that has sums of 2·kSize values of type C and then combine_parts<C, kSize>(): one after the other, so in one
/// place.
template <class C, int kSize>
struct ColumnSums {
  static constexpr int kGroup = kSize == 1 ? 1 : 16 / static_cast<int>(sizeof(C));  ///< partial sums that a thread loads at once
  static constexpr int kBytes = kColumnThreads * std::max(2 * kSize * static_cast<int>(sizeof(C)), 2 * kGroup * 8);
  static_assert(kSize % kGroup == 0 && kBytes <= 48 << 10);
};

/// The two sums of each channel of a group, for combine_parts(): kSize first sums, then kSize second ones, from the threads that have them.
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

/// What the parts' two numbers of a channel add to its sums: themselves. `origin` is part 0's first number.
struct AddParts {
  template <class C>
  STARLING_HD void operator()(Index, C, C first, C second, double& sum, double& other) const {
    sum += static_cast<double>(first);
    other += static_cast<double>(second);
  }
};

/// In a tile's last block: add(part, origin, its first number, its second, sum, other sum) for each part and channel, then take(channel,
/// part 0's first number, sum, other sum) for each channel. partial is [parts][2][channels]; no __restrict__, as other blocks have written
/// it.
template <class C, int kSize, class Add, class Take>
__device__ __forceinline__ void combine_parts(const C* partial, const ColumnTiles& t, unsigned char* shared, const Add& add,
                                              const Take& take) {
  constexpr int kGroup = ColumnSums<C, kSize>::kGroup;
  double* sums = reinterpret_cast<double*>(shared);
  const int columns = t.width * kSize, groups = columns / kGroup, thread = static_cast<int>(threadIdx.x);
  const int lanes = kColumnThreads / groups;
  const Index channel = Index{blockIdx.x} * columns + thread % groups * kGroup;
  double sum[2 * kGroup] = {};
  if (channel < t.channels) {
    const C* from = partial + channel;
    const auto origin = load_group<C, kGroup>(from);
#pragma unroll 4
    for (Index part = thread / groups; part < t.parts; part += lanes) {
      const auto first = load_group<C, kGroup>(from + 2 * part * t.channels);
      const auto second = load_group<C, kGroup>(from + (2 * part + 1) * t.channels);
#pragma unroll
      for (int j = 0; j < kGroup; ++j) add(part, origin.v[j], first.v[j], second.v[j], sum[j], sum[kGroup + j]);
    }
  }
  sum_over_rows<kColumnThreads>(sum, sums, groups);
  __syncthreads();
  const Index own = Index{blockIdx.x} * columns + thread;
  if (thread >= columns || own >= t.channels) return;
  const int at = thread % kGroup * kColumnThreads + thread / kGroup;
  take(own, partial[own], sums[at], sums[kGroup * kColumnThreads + at]);
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
