#include <limits>

#include "core/operations/norms.h"
#include "kernels/cuda/device/row_share.h"
#include "kernels/math/fast_float.h"

// Softmax. Of rows a warp takes one, which it holds in registers from its first pass to its last;
// of long ones a block, whose passes find the row in a cache.
namespace starling::cuda {
namespace {

/// Groups of a row that a thread of a warp holds.
constexpr int kMostHeld = 8;

/// Calls f(row) for the rows of this team.
template <int kTeam, class F>
__device__ __forceinline__ void for_team_rows(Index rows, F f) {
  constexpr int kTeams = kThreads / kTeam;
#pragma unroll 1
  for (Index r = Index{blockIdx.x} * kTeams + static_cast<int>(threadIdx.x) / kTeam; r < rows;
       r += Index{gridDim.x} * kTeams)
    f(r);
}

template <class T, int kSize, int kTeam, int kHeld>
__global__ void __launch_bounds__(kThreads, 1)
    softmax_rows(const T* x, T* y, Index rows, Index n, bool logarithm) {
  using C = Compute<T>;
  for_team_rows<kTeam>(rows, [&](Index r) {
    const RowShare<T, kSize, kTeam, kHeld> own(x + r * n, n);
    C largest = -std::numeric_limits<C>::infinity(), sum = C(0);
    own.each([&](Index, int, const Group<T, kSize>& g) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) largest = Larger{}(widen(g.v[j]), largest);
    });
    largest = team_reduce<kTeam>(largest, Larger{});
    own.each([&](Index, int, const Group<T, kSize>& g) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) sum += math::exponential_of<T>(widen(g.v[j]) - largest);
    });
    sum = team_reduce<kTeam>(sum, Plus{});
    const C part = logarithm ? math::logarithm(sum) : C(1) / sum;
    own.each([&](Index c, int, Group<T, kSize> g) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const C shifted = widen(g.v[j]) - largest;
        g.v[j] = narrow<T>(logarithm ? shifted - part : math::exponential_of<T>(shifted) * part);
      }
      store_group<T, kSize>(y + r * n + c, g);
    });
  });
}

template <class T, int kSize, int kTeam, int kHeld>
__global__ void __launch_bounds__(kThreads, 1)
    softmax_gradient_rows(const T* y, const T* dy, T* dx, Index rows, Index n, bool logarithm) {
  using C = Compute<T>;
  for_team_rows<kTeam>(rows, [&](Index r) {
    const RowShare<T, kSize, kTeam, kHeld> own(y + r * n, n), gradient(dy + r * n, n);
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
        g.v[j] = narrow<T>(logarithm ? own_gradient - math::exponential_of<T>(value) * sum
                                     : value * (own_gradient - sum));
      }
      store_group<T, kSize>(dx + r * n + c, g);
    });
  });
}

/// Calls run<kSize, kTeam, kHeld>(how to launch) for rows, as fits their length.
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
        if (x.channels > kMostHeld * kWarp * kSize)
          run.template operator()<kSize, kThreads, 0>(launch_of(kThreads));
        else
          run.template operator()<kSize, kWarp, kMostHeld>(launch_of(kWarp));
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
        [&]<int kSize, int kTeam, int kHeld>(const Launch& how) {
          launch(softmax_rows<T, kSize, kTeam, kHeld>, how, x, y, matrix.rows, matrix.channels,
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
        [&]<int kSize, int kTeam, int kHeld>(const Launch& how) {
          launch(softmax_gradient_rows<T, kSize, kTeam, kHeld>, how, y, dy, dx, matrix.rows,
                 matrix.channels, args.logarithm);
        },
        y, dy, dx);
  });
}

}  // namespace starling::cuda
