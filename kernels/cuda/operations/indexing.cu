#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>

#include "core/operations/indexing.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/cuda/device/radix_sort.h"
#include "kernels/cuda/device/row_grid.h"
#include "kernels/cuda/operations/plain.h"
#include "kernels/cuda/runtime/launch.h"

// Rows of a table by number, and back. On the way back the positions are sorted by row. Then
// whoever comes to the first position of a row adds it up in the order of the positions, with the
// CPU's bits. Numbers are in device memory, so one outside the table cannot stop the call: what is
// taken there becomes NaN.
namespace starling::cuda {
namespace {

constexpr int kRun = 4;  ///< positions whose numbers are loaded before they are added

/// Rows are positions; items are packs of columns.
template <class T, int kCount>
__global__ void take_rows(IndexedRows at, const std::int32_t* index, const T* x, Index packs,
                          T* y) {
  for_items(at.named(), packs, [&](Index i, Index pack) {
    const Index row = at.row(index, i);
    T values[kCount];
    if (row >= 0) {
      load<kCount>(x + (row * packs + pack) * kCount, values);
    } else {
#pragma unroll
      for (int k = 0; k < kCount; ++k) values[k] = T(std::numeric_limits<float>::quiet_NaN());
    }
    store<kCount>(values, y + (i * packs + pack) * kCount);
  });
}

/// What positions are sorted by: their rows; those outside the table come last.
struct RowKey {
  IndexedRows at;
  const std::int32_t* index;
  int bits;

  __device__ unsigned digit(std::int32_t position, int shift) const {
    const Index row = at.row(index, position);
    return static_cast<unsigned>((row < 0 ? at.all() : row) >> shift) % kDigits;
  }
};

/// Rows are places in `order`; items are packs of columns.
template <class T, class Y, int kCount>
__global__ void add_rows(IndexedRows at, const std::int32_t* index, const std::int32_t* order,
                         const T* x, Index packs, Y* y, bool accumulate) {
  const Index n = at.named();
  for_items(n, packs, [&](Index place, Index pack) {
    const Index row = at.row(index, order[place]);
    if (row < 0 || (place > 0 && at.row(index, order[place - 1]) == row)) return;
    Y* to = y + (row * packs + pack) * kCount;
    Compute<Y> result[kCount] = {};
    if (accumulate) load_wide<kCount>(to, result);
    double sum[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) sum[k] = static_cast<double>(result[k]);
    bool more = true;
    for (Index first = place; more && first < n; first += kRun) {
      Compute<T> values[kRun][kCount] = {};
      bool same[kRun];
#pragma unroll
      for (int r = 0; r < kRun; ++r) {
        const Index i = order[min(first + r, n - 1)];
        same[r] = first + r < n && at.row(index, i) == row;
        if (same[r]) load_wide<kCount>(x + (i * packs + pack) * kCount, values[r]);
      }
#pragma unroll
      for (int r = 0; r < kRun; ++r) {
#pragma unroll
        for (int k = 0; k < kCount; ++k)
          sum[k] += same[r] ? static_cast<double>(values[r][k]) : 0.0;
      }
      more = same[kRun - 1];
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) result[k] = static_cast<Compute<Y>>(sum[k]);
    store_narrow<kCount>(result, to);
  });
}

}  // namespace

void CudaBackend::issue(const Gather& args) {
  const IndexedRows at(args.x, args.index, args.y);
  const std::int32_t* index = args.index.data<std::int32_t>();
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    T* y = args.y.data<T>();
    const auto run = [&]<int kCount>() {
      const Index packs = at.width() / kCount;
      launch(take_rows<T, kCount>, over_rows(at.named(), packs, handle()), at, index, x, packs, y);
    };
    with_packs<T>(at.width(), run, x, y);
  });
}

void CudaBackend::issue(const ScatterAdd& args) {
  const IndexedRows at(args.y, args.index, args.x);
  const std::int32_t* index = args.index.data<std::int32_t>();
  if (!args.accumulate) fill_numbers(*this, args.y, 0.0);
  if (at.named() == 0) return;
  const int bits = std::bit_width(static_cast<std::uint64_t>(at.all()));
  const Tensor order = sorted(*this, at.named(), RowKey{at, index, bits});
  const auto add = [&](auto type, auto result) {
    using T = decltype(type);
    using Y = decltype(result);
    const T* x = args.x.data<T>();
    Y* y = args.y.data<Y>();
    const auto run = [&]<int kCount>() {
      const Index packs = at.width() / kCount;
      launch(add_rows<T, Y, kCount>, over_rows(at.named(), packs, handle()), at, index,
             order.data<std::int32_t>(), x, packs, y, args.accumulate);
    };
    with_packs<T>(at.width(), run, x, y);
  };
  floating(args.x, [&](auto type) {
    if (args.y.dtype() == args.x.dtype())
      add(type, type);
    else
      add(type, Compute<decltype(type)>{});
  });
}

}  // namespace starling::cuda
