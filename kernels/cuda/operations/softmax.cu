#include <limits>

#include "core/operations/norms.h"
#include "kernels/cuda/device/column_tiles.h"
#include "kernels/math/activations.h"

// Softmax. Of rows a warp takes one, which it holds in registers from its first pass to its last;
// of long ones a block, whose passes find the row in a cache.
namespace starling::cuda {
namespace {

/// Groups of a row that a thread of a warp holds.
constexpr int kHeld = 8;

/// A thread's share of a row of n numbers: groups of kSize, the team's side by side. With kAll it
/// holds them.
template <class T, int kSize, int kTeam, bool kAll>
struct Share {
  const T* row;
  Index n;
  int first;
  Coming<T, kSize> held[kAll ? kHeld : 1];

  __device__ __forceinline__ Share(const T* from, Index size)
      : row(from), n(size), first(static_cast<int>(threadIdx.x) % kTeam * kSize) {
    if constexpr (kAll) {
#pragma unroll
      for (int u = 0; u < kHeld; ++u)
        if (first + u * kTeam * kSize < n)
          held[u] = issue_load<kSize>(row + first + u * kTeam * kSize);
    }
  }
  /// Calls f(where in the row, the group's number u, group) for each.
  template <class F>
  __device__ __forceinline__ void each(F f) const {
    if constexpr (kAll) {
#pragma unroll
      for (int u = 0; u < kHeld; ++u) {
        const Index c = first + u * kTeam * kSize;
        if (c < n) f(c, u, held[u].group());
      }
    } else {
#pragma unroll 2
      for (Index c = first; c < n; c += kTeam * kSize) f(c, 0, load_group<T, kSize>(row + c));
    }
  }
  /// The other tensor's group where each() has called with c and u.
  __device__ __forceinline__ Group<T, kSize> group(Index c, int u) const {
    if constexpr (kAll) {
      return held[u].group();
    } else {
      return load_group<T, kSize>(row + c);
    }
  }
};

/// Calls f(row) for the rows of this team.
template <int kTeam, class F>
__device__ __forceinline__ void for_team_rows(Index rows, F f) {
  constexpr int kTeams = kThreads / kTeam;
#pragma unroll 1
  for (Index r = Index{blockIdx.x} * kTeams + static_cast<int>(threadIdx.x) / kTeam; r < rows;
       r += Index{gridDim.x} * kTeams)
    f(r);
}

template <class T, int kSize, int kTeam, bool kAll>
__global__ void __launch_bounds__(kThreads, 1)
    softmax_rows(const T* x, T* y, Index rows, Index n, bool logarithm) {
  using C = Compute<T>;
  for_team_rows<kTeam>(rows, [&](Index r) {
    const Share<T, kSize, kTeam, kAll> own(x + r * n, n);
    C largest = -std::numeric_limits<C>::infinity(), sum = C(0);
    own.each([&](Index, int, const Group<T, kSize>& g) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) largest = Larger{}(widen(g.v[j]), largest);
    });
    largest = team_reduce<kTeam>(largest, Larger{});
    own.each([&](Index, int, const Group<T, kSize>& g) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) sum += math::exponential(widen(g.v[j]) - largest);
    });
    sum = team_reduce<kTeam>(sum, Plus{});
    const C part = logarithm ? math::logarithm(sum) : C(1) / sum;
    own.each([&](Index c, int, Group<T, kSize> g) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const C shifted = widen(g.v[j]) - largest;
        g.v[j] = narrow<T>(logarithm ? shifted - part : math::exponential(shifted) * part);
      }
      store_group<T, kSize>(y + r * n + c, g);
    });
  });
}

template <class T, int kSize, int kTeam, bool kAll>
__global__ void __launch_bounds__(kThreads, 1)
    softmax_gradient_rows(const T* y, const T* dy, T* dx, Index rows, Index n, bool logarithm) {
  using C = Compute<T>;
  for_team_rows<kTeam>(rows, [&](Index r) {
    const Share<T, kSize, kTeam, kAll> own(y + r * n, n), gradient(dy + r * n, n);
    C sum = C(0);
    own.each([&](Index c, int u, const Group<T, kSize>& a) {
      const auto g = gradient.group(c, u);
#pragma unroll
      for (int j = 0; j < kSize; ++j)
        sum += logarithm ? widen(g.v[j]) : widen(a.v[j]) * widen(g.v[j]);
    });
    sum = team_reduce<kTeam>(sum, Plus{});
    own.each([&](Index c, int u, const Group<T, kSize>& a) {
      auto g = gradient.group(c, u);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const C value = widen(a.v[j]), own_gradient = widen(g.v[j]);
        g.v[j] = narrow<T>(logarithm ? own_gradient - math::exponential(value) * sum
                                     : value * (own_gradient - sum));
      }
      store_group<T, kSize>(dx + r * n + c, g);
    });
  });
}

/// Calls run<kSize, kTeam, kAll>(how to launch) for rows, as fits their length.
template <class T, class Run, class... Pointers>
void with_teams(CudaBackend& backend, const RowsAndChannels& x, const Run& run,
                Pointers... pointers) {
  const auto launch_of = [&](int team) {
    return Launch{.grid = {blocks_for(x.rows, kThreads / team)},
                  .block = {kThreads},
                  .stream = backend.handle()};
  };
  with_packs<T>(
      x.channels,
      [&]<int kSize>() {
        if (x.channels > kHeld * kWarp * kSize)
          run.template operator()<kSize, kThreads, false>(launch_of(kThreads));
        else
          run.template operator()<kSize, kWarp, true>(launch_of(kWarp));
      },
      pointers...);
}

}  // namespace

void CudaBackend::issue(const SoftmaxForward& args) {
  const RowsAndChannels matrix = rows_and_channels(args.x);
  if (matrix.rows == 0) return;
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    T* y = args.y.data<T>();
    with_teams<T>(
        *this, matrix,
        [&]<int kSize, int kTeam, bool kAll>(const Launch& how) {
          launch(softmax_rows<T, kSize, kTeam, kAll>, how, x, y, matrix.rows, matrix.channels,
                 args.logarithm);
        },
        x, y);
  });
}

void CudaBackend::issue(const SoftmaxBackward& args) {
  const RowsAndChannels matrix = rows_and_channels(args.y);
  if (matrix.rows == 0) return;
  floating(args.y, [&](auto type) {
    using T = decltype(type);
    const T *y = args.y.data<T>(), *dy = args.dy.data<T>();
    T* dx = args.dx.data<T>();
    with_teams<T>(
        *this, matrix,
        [&]<int kSize, int kTeam, bool kAll>(const Launch& how) {
          launch(softmax_gradient_rows<T, kSize, kTeam, kAll>, how, y, dy, dx, matrix.rows,
                 matrix.channels, args.logarithm);
        },
        y, dy, dx);
  });
}

}  // namespace starling::cuda
