#pragma once

#include <limits>

#include "kernels/cuda/device/column_tiles.h"

namespace starling::cuda {

/// One thread's share of a row of n numbers, in groups of kSize; the kTeam threads of a row take
/// adjacent groups. With kHeld > 0 the thread keeps its groups in registers, and there must be no
/// more than kHeld of them: n <= kTeam · kSize · kHeld. With kHeld = 0 each pass reads the row from
/// memory. If n is not a multiple of kSize, the row's memory must be padded to one; the padding
/// reads as -infinity. Example: a row of 50,257 logits in bf16 is RowShare<BFloat16, 8, 768, 9>.
template <class T, int kSize, int kTeam, int kHeld>
struct RowShare {
  const T* row;
  Index n;
  int first;
  Coming<T, kSize> held[kHeld > 0 ? kHeld : 1];

  __device__ __forceinline__ RowShare(const T* from, Index size)
      : row(from), n(size), first(static_cast<int>(threadIdx.x) % kTeam * kSize) {
    const T* const own = row + first;
    for_held([&](Index, int u) { held[u] = issue_load<kSize>(own + u * kTeam * kSize); });
    if (kSize == 1 || n % kSize == 0) return;
    for_held([&](Index c, int u) {
      if (n - c < kSize)
        held[u].words = std::bit_cast<typename Coming<T, kSize>::Words>(cut(held[u].group(), c));
    });
  }
  /// Calls f(index of the group's first number in the row, index u of the group, group).
  template <class F>
  __device__ __forceinline__ void each(F f) const {
    if constexpr (kHeld > 0) {
      for_held([&](Index c, int u) { f(c, u, held[u].group()); });
    } else {
#pragma unroll 2
      for (Index c = first; c < n; c += kTeam * kSize) f(c, 0, group(c, 0));
    }
  }
  /// The group at these indices, for each() of another tensor's share.
  __device__ __forceinline__ Group<T, kSize> group(Index c, int u) const {
    if constexpr (kHeld > 0) {
      return held[u].group();
    } else {
      const auto read = load_group<T, kSize>(row + c);
      return kSize > 1 && n - c < kSize ? cut(read, c) : read;
    }
  }

 private:
  template <class F>
  __device__ __forceinline__ void for_held(F f) const {
    const int count = static_cast<int>(n);
#pragma unroll
    for (int u = 0; u < kHeld; ++u)
      if (first + u * kTeam * kSize < count) f(Index{first} + u * kTeam * kSize, u);
  }
  __device__ __forceinline__ Group<T, kSize> cut(Group<T, kSize> group, Index c) const {
#pragma unroll
    for (int j = 1; j < kSize; ++j)
      if (c + j >= n) group.v[j] = narrow<T>(-std::numeric_limits<Compute<T>>::infinity());
    return group;
  }
};

}  // namespace starling::cuda
