#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>
#include <utility>

#include "core/operations/indexing.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/cuda/device/row_grid.h"
#include "kernels/cuda/operations/plain.h"
#include "kernels/cuda/runtime/launch.h"

// Rows of a table by number, and back. On the way back the positions are sorted by row, eight bits
// of it after another, each time in the order that they had: no atomic operation decides an order.
// Then whoever comes to the first position of a row adds it up in the order of the positions, with
// the CPU's bits. Numbers are in device memory, so one outside the table cannot stop the call: what
// is taken there becomes NaN.
namespace starling::cuda {
namespace {

constexpr int kDigits = 256;  ///< of a pass of the sort; as many positions go to a block
constexpr int kRun = 4;       ///< positions whose numbers are loaded before they are added
static_assert(kDigits == kThreads);

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

/// Positions in some order, by whose rows they are sorted; those outside the table come last.
struct Order {
  IndexedRows at;
  const std::int32_t* index;
  const std::int32_t* positions;  ///< null: as they come
  int shift;                      ///< of the digit

  __device__ std::int32_t position(Index i) const {
    return positions ? positions[i] : static_cast<std::int32_t>(i);
  }
  __device__ int digit(std::int32_t position) const {
    const Index row = at.row(index, position);
    return static_cast<int>((row < 0 ? at.all() : row) >> shift & (kDigits - 1));
  }
};

/// counts[digit][block] of the digits of the block's positions.
__global__ void __launch_bounds__(kDigits) count_digits(Order order, Index n, int* counts) {
  __shared__ int own[kDigits];
  own[threadIdx.x] = 0;
  __syncthreads();
  const Index i = Index{blockIdx.x} * kDigits + threadIdx.x;
  if (i < n) atomicAdd(&own[order.digit(order.position(i))], 1);
  __syncthreads();
  counts[Index{threadIdx.x} * gridDim.x + blockIdx.x] = own[threadIdx.x];
}

/// Each count becomes the sum of those before it; one block, each thread of which takes a piece.
__global__ void __launch_bounds__(kThreads) add_up(int* counts, Index n) {
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

/// Puts each position behind those with a smaller digit, and those with its own that came before.
__global__ void __launch_bounds__(kDigits)
    place_positions(Order order, Index n, const int* counts, std::int32_t* to) {
  __shared__ int digits[kDigits];
  const Index i = Index{blockIdx.x} * kDigits + threadIdx.x;
  const std::int32_t position = i < n ? order.position(i) : 0;
  const int digit = i < n ? order.digit(position) : kDigits;
  digits[threadIdx.x] = digit;
  __syncthreads();
  if (i >= n) return;
  int before = counts[Index{digit} * gridDim.x + blockIdx.x];
  for (unsigned t = 0; t < threadIdx.x; ++t) before += digits[t] == digit ? 1 : 0;
  to[before] = position;
}

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

/// The positions by their rows, and of one row as they come.
Tensor sorted(CudaBackend& backend, const IndexedRows& at, const std::int32_t* index) {
  const Index n = at.named(), blocks = (n + kDigits - 1) / kDigits;
  Tensor from, to = backend.scratch(n, DType::kInt32), other;
  const Tensor counts = backend.scratch(kDigits * blocks, DType::kInt32);
  const auto digits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(at.all())));
  Order order{at, index, nullptr, 0};
  for (; order.shift < digits; order.shift += 8) {
    if (order.shift > 0) {
      other = from ? from : backend.scratch(n, DType::kInt32);
      from = std::exchange(to, other);
      order.positions = from.data<std::int32_t>();
    }
    const Launch how{{static_cast<unsigned>(blocks)}, {kDigits}, backend.handle()};
    launch(count_digits, how, order, n, counts.data<int>());
    launch(add_up, {{1}, {kThreads}, backend.handle()}, counts.data<int>(), kDigits * blocks);
    launch(place_positions, how, order, n, counts.data<int>(), to.data<std::int32_t>());
  }
  return to;
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
  const Tensor order = sorted(*this, at, index);
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
