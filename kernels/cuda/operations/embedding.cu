#include <algorithm>
#include <limits>
#include <type_traits>

#include "core/operations/indexing.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/cuda/device/row_grid.h"
#include "kernels/cuda/operations/plain.h"
#include "kernels/cuda/runtime/launch.h"

// Rows of a table by number, and back. On the way back the positions are sorted by token, each
// finding its place by counting: tokens are few beside what they name, and no atomic operation
// decides an order. Then whoever comes to the first position of a token adds up its row in the
// order of the positions, with the CPU's bits. Tokens are in device memory, so one outside the
// table cannot stop the call: its row becomes NaN.
namespace starling::cuda {
namespace {

constexpr int kTeam = 8;  ///< threads that find the place of one position
constexpr int kRun = 4;   ///< positions whose numbers are loaded before they are added

/// Rows are positions; items are packs of columns.
template <class T, int kCount>
__global__ void take_rows(const std::int32_t* tokens, const T* table, Index n, Index rows,
                          Index packs, T* y) {
  for_items(n, packs, [&](Index i, Index pack) {
    const Index token = tokens[i];
    T values[kCount];
    if (token >= 0 && token < rows) {
      load<kCount>(table + (token * packs + pack) * kCount, values);
    } else {
#pragma unroll
      for (int k = 0; k < kCount; ++k) values[k] = T(std::numeric_limits<float>::quiet_NaN());
    }
    store<kCount>(values, y + (i * packs + pack) * kCount);
  });
}

/// order[…] = the positions, by token and then by themselves.
__global__ void __launch_bounds__(kThreads)
    sort_positions(const std::int32_t* tokens, Index n, std::int32_t* order) {
  constexpr int kTeams = kThreads / kTeam;
  const int member = static_cast<int>(threadIdx.x) % kTeam;
  for (Index first = Index{blockIdx.x} * kTeams; first < n; first += Index{gridDim.x} * kTeams) {
    const Index i = first + threadIdx.x / kTeam;
    int before = 0;
    if (i < n) {
      const std::int32_t token = tokens[i];
#pragma unroll 4
      for (Index k = member; k < n; k += kTeam)
        before += tokens[k] < token || (tokens[k] == token && k < i) ? 1 : 0;
    }
    for (int lanes = kTeam / 2; lanes > 0; lanes /= 2)
      before += __shfl_xor_sync(0xffffffffu, before, lanes);
    if (i < n && member == 0) order[before] = static_cast<std::int32_t>(i);
  }
}

/// Rows are places in `order`; items are packs of columns.
template <class T, int kCount>
__global__ void add_rows(const std::int32_t* tokens, const std::int32_t* order, const T* dy,
                         Index n, Index rows, Index packs, Compute<T>* dtable, bool accumulate) {
  using C = Compute<T>;
  for_items(n, packs, [&](Index place, Index pack) {
    const std::int32_t token = tokens[order[place]];
    if (token < 0 || token >= rows || (place > 0 && tokens[order[place - 1]] == token)) return;
    C* to = dtable + (token * packs + pack) * kCount;
    C result[kCount] = {};
    if (accumulate) load<kCount>(to, result);
    double sum[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) sum[k] = static_cast<double>(result[k]);
    bool more = true;
    for (Index first = place; more && first < n; first += kRun) {
      C values[kRun][kCount] = {};
      bool same[kRun];
#pragma unroll
      for (int r = 0; r < kRun; ++r) {
        const Index i = order[min(first + r, n - 1)];
        same[r] = first + r < n && tokens[i] == token;
        if (same[r]) load_wide<kCount>(dy + (i * packs + pack) * kCount, values[r]);
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
    for (int k = 0; k < kCount; ++k) result[k] = static_cast<C>(sum[k]);
    store<kCount>(result, to);
  });
}

/// Rows and columns of a table.
struct Table {
  Index rows, columns;
};
Table table_of(const Tensor& x) { return {x.elements() / x.shape().back(), x.shape().back()}; }

}  // namespace

void CudaBackend::issue(const EmbeddingForward& args) {
  const Table t = table_of(args.table);
  const Index n = args.tokens.elements();
  const std::int32_t* tokens = args.tokens.data<std::int32_t>();
  floating(args.table, [&](auto type) {
    using T = decltype(type);
    const T* table = args.table.data<T>();
    T* y = args.y.data<T>();
    const auto run = [&]<int kCount>() {
      const Index packs = t.columns / kCount;
      launch(take_rows<T, kCount>, over_rows(n, packs, handle()), tokens, table, n, t.rows, packs,
             y);
    };
    with_packs<T>(t.columns, run, table, y);
  });
}

void CudaBackend::issue(const EmbeddingBackward& args) {
  const Table t = table_of(args.dtable);
  const Index n = args.tokens.elements();
  require(n <= std::numeric_limits<std::int32_t>::max(), "cuda",
          "embedding: {} tokens are more than can be numbered", n);
  const std::int32_t* tokens = args.tokens.data<std::int32_t>();
  floating(args.dy, [&](auto type) {
    using T = decltype(type);
    const T* dy = args.dy.data<T>();
    Compute<T>* dtable = args.dtable.data<Compute<T>>();
    if (!args.accumulate) fill_numbers(*this, args.dtable, 0.0);
    const Tensor order = scratch(std::max<Index>(n, 1), DType::kInt32);
    launch(sort_positions, {{blocks_for(n, kThreads / kTeam)}, {kThreads}, handle()}, tokens, n,
           order.data<std::int32_t>());
    const auto run = [&]<int kCount>() {
      const Index packs = t.columns / kCount;
      launch(add_rows<T, kCount>, over_rows(n, packs, handle()), tokens, order.data<std::int32_t>(),
             dy, n, t.rows, packs, dtable, args.accumulate);
    };
    with_packs<T>(t.columns, run, dy, dtable);
  });
}

}  // namespace starling::cuda
