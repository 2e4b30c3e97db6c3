#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "core/tensor.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/block_reduce.h"
#include "kernels/cuda/runtime/launch.h"

// How kernels that compute per channel cover a matrix [rows, channels]. A block takes a tile of
// columns and one part of the rows; a thread takes a group of adjacent channels and every n-th row,
// so that per-channel values stay in its registers and a warp reads whole lines of 128 bytes. Sums
// over rows are combined within the block (sum_over_rows), which leaves them for its part
// (store_sums). Over the parts they are combined (combine_parts) by each block of the kernel that
// follows, or where none follows by the tile's last block to arrive. All in a fixed order.
namespace starling::cuda {

/// One or two blocks of this size fill a multiprocessor; so there are few parts to combine.
constexpr int kColumnThreads = 512;

struct ColumnTiles {
  Index rows = 0, channels = 0;
  Index part_rows = 0;  ///< rows of a part; the last may have fewer
  /// Threads of a row, a power of two up to 32; the block's other threads take other rows
  int width = 1;
  unsigned tiles = 1, parts = 1;

  Dim3 grid() const { return {tiles, parts, 1}; }
  STARLING_HD Index rows_of(Index part) const {
    const Index left = rows - part * part_rows;
    return left < part_rows ? left : part_rows;
  }
};

/// Tiles for groups of `group` channels: as many blocks as the device runs at once (`blocks`, at
/// most 2 · arrivals, the number of counters for tiles), with at least two rows per thread if
/// possible. The sums of all parts, 2 a channel, that a block of the next kernel combines are at
/// most a quarter as many as the part's numbers of the matrix: parts · 2 <= rows / parts / 4.
inline ColumnTiles column_tiles(Index rows, Index channels, int group, Index blocks,
                                Index arrivals) {
  constexpr Index kRowsPerThread = 2, kMostCombined = 20000;
  const Index most_parts =
      std::max<Index>(1, static_cast<Index>(std::sqrt(static_cast<double>(rows) / 8.0)));
  ColumnTiles t{.rows = rows, .channels = channels};
  const Index groups = (channels + group - 1) / group,
              most_blocks = std::clamp<Index>(blocks, 1, 2 * arrivals);
  while (t.width < kWarp && t.width < groups) t.width *= 2;
  const auto cut = [&] {
    t.tiles = static_cast<unsigned>((groups + t.width - 1) / t.width);
    const Index step = kColumnThreads / t.width * kRowsPerThread,
                most = std::clamp<Index>(most_blocks / t.tiles, 1, most_parts);
    t.part_rows = std::max<Index>(1, ((rows + most - 1) / most + step - 1) / step) * step;
    t.parts = static_cast<unsigned>(std::max<Index>(1, (rows + t.part_rows - 1) / t.part_rows));
  };
  cut();
  // Narrower tiles distribute the combining to more blocks, down to 128 bytes of a row, or 64 where
  // blocks would be too few otherwise: such a matrix is small and stays in the cache.
  while (group > 1 && ((t.width > 8 && Index{2} * t.parts * t.width * group > kMostCombined) ||
                       (t.width > 4 && most_blocks / t.tiles > most_parts))) {
    t.width /= 2;
    cut();
  }
  return t;
}

/// kSize adjacent numbers, loaded and stored together.
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

/// A group being loaded, as whole words: for 16-bit elements nvcc would use a register each.
template <class T, int kSize>
struct Coming {
#if defined(__CUDA_ARCH__)
  using Words = std::conditional_t<sizeof(Group<T, kSize>) == 16, uint4, Group<T, kSize>>;
#else
  using Words = Group<T, kSize>;
#endif
  Words words;
  __device__ __forceinline__ Group<T, kSize> group() const {
    return std::bit_cast<Group<T, kSize>>(words);
  }
};
template <int kSize, class T>
__device__ __forceinline__ Coming<T, kSize> issue_load(const T* from) {
  return {*reinterpret_cast<const typename Coming<T, kSize>::Words*>(from)};
}

/// The position of a thread: the channels from `channel` on, in `count` rows. Row 0 is the first
/// row of its part. With kBack, rows and parts are traversed backwards, since the last rows of the
/// preceding pass are still in the cache.
template <bool kBack>
struct ColumnPlace {
  Index channel = 0, count = 0;
  Index first = 0;   ///< the matrix row of row 0; further rows are `step` apart
  Index start = 0;   ///< element index of its channel in row 0
  Index stride = 0;  ///< distance in elements between its rows
  Index part = 0;
  int step = 1;
  /// False for threads beyond the last channel, which only take part in barriers
  bool inside = false;

  STARLING_HD Index at(Index row) const {
    return kBack ? start - row * stride : start + row * stride;
  }
};
template <int kSize, bool kBack = false>
__device__ __forceinline__ ColumnPlace<kBack> column_place(const ColumnTiles& t) {
  ColumnPlace<kBack> place;
  place.part = kBack ? t.parts - 1 - Index{blockIdx.y} : Index{blockIdx.y};
  const int row = static_cast<int>(threadIdx.x) / t.width;
  place.channel = (Index{blockIdx.x} * t.width + static_cast<int>(threadIdx.x) % t.width) * kSize;
  place.inside = place.channel < t.channels;
  place.step = kColumnThreads / t.width;
  place.first = place.part * t.part_rows + row;
  const Index rows = t.rows_of(place.part);
  place.count = place.inside && rows > row ? (rows - row + place.step - 1) / place.step : 0;
  place.stride = place.step * t.channels;
  place.start = (kBack ? place.first + (place.count - 1) * place.step : place.first) * t.channels +
                place.channel;
  return place;
}
/// Software pipeline over `count` rows, kRows at a time: load.template operator()<kAll>(first, n)
/// issues loads of rows first … first + n - 1; work.template operator()<kAll>(result of load,
/// first, n) processes them; n is kRows if kAll. The next rows are loaded before the current ones
/// are processed. A thread must not write what it reads in another row.
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
    work.template operator()<false>(load.template operator()<false>(Index{0}, rest), Index{0},
                                    rest);
  }
}

/// in_flight() for single rows: take(load(row), row) for each.
template <int kRows, class Load, class Take>
__device__ __forceinline__ void for_rows(Index count, const Load& load, const Take& take) {
  struct Rows {
    decltype(load(Index{})) of[kRows];
  };
  in_flight<kRows>(
      count,
      [&]<bool kAll>(Index first, int n) {
        Rows rows;
#pragma unroll
        for (int u = 0; u < kRows; ++u) {
          if (kAll || u < n) rows.of[u] = load(first + u);
        }
        return rows;
      },
      [&]<bool kAll>(const Rows& rows, Index first, int n) {
#pragma unroll
        for (int u = 0; u < kRows; ++u) {
          if (kAll || u < n) take(rows.of[u], first + u);
        }
      });
}

/// Sums each value over the threads of the same channels, which are `width` threads apart; the
/// first `width` threads get the result. `shared` has kValues * kThreads elements.
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

/// Shared memory of a kernel that calls sum_over_rows() for 2·kSize values of type C, or
/// combine_parts<kSize>(), or one after the other.
template <class C, int kSize>
struct ColumnSums {
  /// Partial sums that a thread loads together
  static constexpr int kGroup = kSize == 1 ? 1 : 16 / static_cast<int>(sizeof(C));
  static constexpr int kBytes =
      kColumnThreads * std::max(2 * kSize * static_cast<int>(sizeof(C)), 2 * kGroup * 8);
  static_assert(kSize % kGroup == 0 && kBytes <= 48 << 10);
};

/// Writes two sums for each channel of a group to partial[parts][2][channels]. `sums`: kSize first
/// sums, then kSize second sums, valid in the threads that have the results of sum_over_rows().
template <int kSize, class C>
__device__ __forceinline__ void store_sums(const C (&sums)[2 * kSize], C* partial,
                                           const ColumnTiles& t, const ColumnPlace<false>& place) {
  if (!place.inside || static_cast<int>(threadIdx.x) >= t.width) return;
  C* out = partial + 2 * place.part * t.channels + place.channel;
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    out[j] = sums[j];
    out[t.channels + j] = sums[kSize + j];
  }
}

/// Combines what the blocks of all parts of this tile stored: add(part, origin, the part's first
/// number, its second, sum, other sum) for each part and channel, then take(channel, origin, sum,
/// other sum) in one thread for each channel, where the origin is part 0's first number. Every
/// block that calls it finds the same bits. All its threads call it; `shared` may be that of
/// sum_over_rows(). `partial` is not __restrict__: other blocks of the same kernel may write it.
template <int kSize, class C, class Add, class Take>
__device__ __forceinline__ void combine_parts(const C* partial, const ColumnTiles& t,
                                              unsigned char* shared, const Add& add,
                                              const Take& take) {
  const int thread = static_cast<int>(threadIdx.x);
  constexpr int kGroup = ColumnSums<C, kSize>::kGroup;
  double* totals = reinterpret_cast<double*>(shared);
  const int columns = t.width * kSize, groups = columns / kGroup;
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
      for (int j = 0; j < kGroup; ++j)
        add(part, origin.v[j], first.v[j], second.v[j], sum[j], sum[kGroup + j]);
    }
  }
  sum_over_rows<kColumnThreads>(sum, totals, groups);
  __syncthreads();
  const Index own = Index{blockIdx.x} * columns + thread;
  if (thread >= columns || own >= t.channels) return;
  const int at = thread % kGroup * kColumnThreads + thread / kGroup;
  take(own, partial[own], totals[at], totals[kGroup * kColumnThreads + at]);
}
/// combine_parts() for plain sums; calls take(channel, sum, other sum).
template <int kSize, class C, class Take>
__device__ __forceinline__ void combine_sums(const C* partial, const ColumnTiles& t,
                                             unsigned char* shared, const Take& take) {
  combine_parts<kSize>(
      partial, t, shared,
      [](Index, C, C first, C second, double& sum, double& other) {
        sum += static_cast<double>(first);
        other += static_cast<double>(second);
      },
      [&](Index c, C, double sum, double other) { take(c, sum, other); });
}

/// The rows (product of all dimensions except the last) and channels of x.
struct RowsAndChannels {
  Index rows = 0, channels = 0;
  Index elements() const { return rows * channels; }
};
inline RowsAndChannels rows_and_channels(const Tensor& x) {
  return {x.elements() / x.shape().back(), x.shape().back()};
}

/// The same tiles for all kernels of an operation, so that each finds in the cache what the
/// previous one read last.
template <class... Kernels>
ColumnTiles column_tiles(const CudaBackend& backend, RowsAndChannels x, int group,
                         Kernels... kernels) {
  const int each = std::min({resident_blocks(kernels, kColumnThreads)...});
  return column_tiles(x.rows, x.channels, group,
                      Index{std::max(backend.info().multiprocessors, 1)} * each,
                      CudaBackend::kArrivals);
}
inline Launch over_columns(const CudaBackend& backend, const ColumnTiles& t,
                           std::source_location where = std::source_location::current()) {
  return {.grid = t.grid(), .block = {kColumnThreads}, .stream = backend.handle(), .where = where};
}
/// Memory for store_sums() of type C.
template <class C>
Tensor partial_sums(CudaBackend& backend, const ColumnTiles& t) {
  return backend.scratch(Index{2} * t.parts * t.channels, DTypeOf<C>::value);
}

}  // namespace starling::cuda
