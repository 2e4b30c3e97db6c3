#pragma once

#include <algorithm>
#include <type_traits>

#include "core/operations/attention.h"
#include "kernels/cuda/device/async_copy.h"
#include "kernels/cuda/device/device.h"

// What attention's kernels are made of: how a block shares a tile of rows by places of the other
// side, brings both into shared memory and multiplies them. Products are limited by what is read of
// shared memory: a thread has 8 × 8 sums, and reads 16 packs for 256 multiply-adds. Operands come
// in chunks, each while the one before is worked on.
namespace starling::cuda {

constexpr int kAttentionRows = 16;   ///< threads along a tile's rows
constexpr int kAttentionChunk = 16;  ///< numbers that a chunk of a product sums over

template <class T>
struct AttentionHeads {
  T* data;
  Index sample, head, place;
  STARLING_HD T* at(Index n, Index h) const { return data + n * sample + h * head; }
};
template <class T>
AttentionHeads<T> attention_heads(const View& x) {
  return {x.data<T>(), x.stride(0), x.stride(1), x.stride(2)};
}

/// Places of one head.
template <class T>
struct HeadPlaces {
  const T* data;
  Index step;
  int places;
};

/// Copies kPlaces places from `first` on, kNumbers numbers of each from `column` on, to lines of
/// kLine numbers; zeros outside. What needs no conversion is on its way until finish_copies().
template <int kThreads, int kPlaces, int kNumbers, int kLine, class R, class T>
__device__ __forceinline__ void fetch_places(R* to, const HeadPlaces<T>& from, int first,
                                             int column, int depth, bool aligned) {
  constexpr int kWide = Pack<R>::kSize;
  const int thread = static_cast<int>(threadIdx.x);
  const int places = from.places - first, numbers = depth - column;
  const auto each = [&]<int kTogether>(const auto& copy) {
    constexpr int kLanes = kNumbers / kTogether, kStep = kThreads / kLanes;
    static_assert(kPlaces % kStep == 0);
    const int t = thread / kLanes, d = thread % kLanes * kTogether;
    const int end = d < numbers ? places : 0;
    const T* at = from.data + Index{first + t} * from.step + column + d;
    R* line = to + t * kLine + d;
#pragma unroll 1  // addresses of many copies would take registers
    for (int i = t; i < kPlaces; i += kStep) {
      copy(line, at, i < end);
      line += kStep * kLine;
      at += kStep * from.step;
    }
  };
  if constexpr (std::is_same_v<R, T>) {
    if (aligned) {
      each.template operator()<kWide>(
          [](R* line, const T* at, bool inside) { copy_async<16>(line, at, inside); });
    } else {
      each.template operator()<1>(
          [](R* line, const T* at, bool inside) { copy_async<sizeof(R)>(line, at, inside); });
    }
  } else {
    each.template operator()<1>(
        [](R* line, const T* at, bool inside) { *line = inside ? widen(*at) : R(0); });
  }
}

/// A block of kTx · kAttentionRows threads and its tile of rows, which meet kOthers places of the
/// other side at a time. A thread has the rows ty + kAttentionRows·r, the others tx + kTx·c, and of
/// sums for each row packs of columns that are kTx packs apart: a warp's loads from shared memory
/// then meet different banks.
template <class T, int kTx, int kFloats, int kOwn, int kTiles = 1>
struct AttentionBlock {
  using R = Compute<T>;
  static constexpr int kMine = sizeof(R) == 8 ? kFloats / 2 : kFloats;  ///< rows of a thread
  static constexpr int kThreads = kTx * kAttentionRows, kRows = kAttentionRows * kMine,
                       kOthers = kTx * kOwn, kColumnsOwn = 8, kColumns = kTx * kColumnsOwn;
  static constexpr int kWide = Pack<R>::kSize, kLine = kAttentionChunk + kWide,
                       kPitch = kOthers + kTx;
  /// Numbers of a chunk: rows and others of a product, or places to gather
  static constexpr int kHalf = std::max((kRows + kOthers) * kLine, kAttentionChunk* kColumns);
  static constexpr std::size_t kBytes = sizeof(R) * (2 * kHalf + kTiles * kRows * kPitch);
  using Scores = R[kMine][kOwn];
  using Sums = R[kMine][kColumnsOwn];

  R *chunks, *tiles;  ///< shared memory: [2][kHalf], [kTiles][kRows][kPitch]
  int depth;
  bool aligned;
  int tx, ty, half = 0;  ///< the half that the next chunk is in

  __device__ AttentionBlock(int numbers, bool packs)
      : chunks(dynamic_shared<R>()),
        tiles(chunks + 2 * kHalf),
        depth(numbers),
        aligned(packs),
        tx(static_cast<int>(threadIdx.x) % kTx),
        ty(static_cast<int>(threadIdx.x) / kTx) {}
  __device__ int row(int r) const { return ty + r * kAttentionRows; }
  __device__ int other(int c) const { return tx + c * kTx; }
  __device__ R& at(int r, int c, int tile = 0) const {
    return tiles[(tile * kRows + row(r)) * kPitch + other(c)];
  }
  /// Calls f(row, other, number of the tile) for those of a thread, one after another: of an
  /// unrolled loop over random numbers the compiler makes too much.
  template <class F>
  __device__ __forceinline__ void for_own(const F& f) const {
#pragma unroll 1
    for (int k = 0; k < kMine * kOwn; ++k)
      f(row(k / kOwn), other(k % kOwn), at(k / kOwn, k % kOwn));
  }
  /// Calls f(r, c, a number of the thread's).
  template <class F>
  __device__ __forceinline__ static void each(R (&x)[kMine][kOwn], const F& f) {
#pragma unroll
    for (int r = 0; r < kMine; ++r) {
#pragma unroll
      for (int c = 0; c < kOwn; ++c) f(r, c, x[r][c]);
    }
  }
  /// To a tile. Its rows are read by threads of the same warp alone.
  __device__ __forceinline__ void put(Scores& x, int tile = 0) const {
    __syncwarp();
    each(x, [&](int r, int c, R v) { at(r, c, tile) = v; });
  }
  __device__ __forceinline__ void take(Scores& x) const {
    each(x, [&](int r, int c, R& v) { v = at(r, c); });
  }

  __device__ __forceinline__ void start_product(const HeadPlaces<T>& a, int row,
                                                const HeadPlaces<T>& b, int place,
                                                int column = 0) const {
    R* to = chunks + half * kHalf;
    fetch_places<kThreads, kRows, kAttentionChunk, kLine>(to, a, row, column, depth, aligned);
    fetch_places<kThreads, kOthers, kAttentionChunk, kLine>(to + kRows * kLine, b, place, column,
                                                            depth, aligned);
  }
  __device__ __forceinline__ void start_gather(const HeadPlaces<T>& b, int place,
                                               int column) const {
    fetch_places<kThreads, kAttentionChunk, kColumns, kColumns>(chunks + half * kHalf, b, place,
                                                                column, depth, aligned);
  }
  /// Calls work(i, chunk i), of which the first one is on its way. While one is worked on the next
  /// arrives, where the one before was: start(i), and after the last of these chunks next().
  template <class Start, class Next, class Work>
  __device__ __forceinline__ void stream(int count, const Start& start, const Next& next,
                                         const Work& work) {
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      finish_copies();
      __syncthreads();
      const R* chunk = chunks + half * kHalf;
      half ^= 1;
      if (i + 1 < count) {
        start(i + 1);
      } else {
        next();
      }
      work(i, chunk);
    }
  }

  /// sums = products of a's places from `row` on and b's from `place` on. start_product() was
  /// called.
  template <class Next>
  __device__ __forceinline__ void product(Scores& sums, const HeadPlaces<T>& a, int row,
                                          const HeadPlaces<T>& b, int place, const Next& next) {
    each(sums, [](int, int, R& v) { v = R(0); });
    stream((depth + kAttentionChunk - 1) / kAttentionChunk,
           [&](int i) { start_product(a, row, b, place, i * kAttentionChunk); }, next,
           [&](int, const R* chunk) {
             const R *own_a = chunk + ty * kLine, *own_b = chunk + (kRows + tx) * kLine;
#pragma unroll 1
             for (int d = 0; d < kAttentionChunk; d += kWide) {
               Pack<R> left[kMine];
#pragma unroll
               for (int r = 0; r < kMine; ++r)
                 left[r] = pack(own_a + r * kAttentionRows * kLine + d);
#pragma unroll
               for (int c = 0; c < kOwn; ++c) {
                 const Pack<R> right = pack(own_b + c * kTx * kLine + d);
#pragma unroll
                 for (int e = 0; e < kWide; ++e) {
#pragma unroll
                   for (int r = 0; r < kMine; ++r) sums[r][c] += left[r].v[e] * right.v[e];
                 }
               }
             }
           });
  }
  /// sums += the last tile, or with kFirst the first, times b's places from `place` on, their
  /// numbers from `column` on. start_gather() was called.
  template <bool kFirst = false, class Next>
  __device__ __forceinline__ void gather(Sums& sums, const HeadPlaces<T>& b, int place, int column,
                                         const Next& next) {
    stream(
        kOthers / kAttentionChunk,
        [&](int i) { start_gather(b, place + i * kAttentionChunk, column); }, next,
        [&](int i, const R* chunk) {
          const R *own = &at(0, 0, kFirst ? 0 : kTiles - 1) - tx + i * kAttentionChunk,
                  *columns = chunk + tx * kWide;
#pragma unroll 1
          for (int j = 0; j < kAttentionChunk; j += kWide) {
            Pack<R> left[kMine];
#pragma unroll
            for (int r = 0; r < kMine; ++r) left[r] = pack(own + r * kAttentionRows * kPitch + j);
#pragma unroll
            for (int e = 0; e < kWide; ++e) {
#pragma unroll
              for (int g = 0; g < kColumnsOwn; g += kWide) {
                const Pack<R> right = pack(columns + (j + e) * kColumns + g * kTx);
#pragma unroll
                for (int v = 0; v < kWide; ++v) {
#pragma unroll
                  for (int r = 0; r < kMine; ++r) sums[r][g + v] += left[r].v[e] * right.v[v];
                }
              }
            }
          }
        });
  }
  /// Writes sums · factor[row], or zeros where that is 0, to the places from `first` on.
  __device__ __forceinline__ void give(const Sums& sums, const R (&factor)[kMine],
                                       const AttentionHeads<T>& to, int n, int h, int first,
                                       Index places, int column) const {
    T* const own = to.at(n, h);
#pragma unroll
    for (int r = 0; r < kMine; ++r) {
#pragma unroll
      for (int v = 0; v < kColumnsOwn; ++v) {
        const int place = first + row(r),
                  d = column + v / kWide * kTx * kWide + tx * kWide + v % kWide;
        if (place < places && d < depth)
          own[place * to.place + d] = narrow<T>(factor[r] == R(0) ? R(0) : sums[r][v] * factor[r]);
      }
    }
  }
  __device__ __forceinline__ void give(const Sums& sums, const AttentionHeads<T>& to, int n, int h,
                                       int first, Index places, int column) const {
    R one[kMine];
#pragma unroll
    for (int r = 0; r < kMine; ++r) one[r] = R(1);
    give(sums, one, to, n, h, first, places, column);
  }

 private:
  __device__ __forceinline__ static Pack<R> pack(const R* at) {
    return *reinterpret_cast<const Pack<R>*>(at);
  }
};

/// The part of the work that a block has: a tile of rows of one head, and numbers from `column` on.
/// Tiles that meet the most places where attention is causal come first, the shortest last: those
/// of late queries, and of early keys.
template <class B>
struct AttentionPart {
  int n, h, first, column;
  __device__ AttentionPart(Index heads, Index places, bool late_first) {
    const int tiles = static_cast<int>((places + B::kRows - 1) / B::kRows),
              each = static_cast<int>(gridDim.x) / tiles,
              tile = static_cast<int>(blockIdx.x) / each,
              rest = static_cast<int>(blockIdx.x) % each;
    first = (late_first ? tiles - 1 - tile : tile) * B::kRows;
    h = rest % static_cast<int>(heads);
    n = rest / static_cast<int>(heads);
    column = static_cast<int>(blockIdx.y) * B::kColumns;
  }
};

}  // namespace starling::cuda
