#include <algorithm>
#include <type_traits>

#include "core/operations/pointwise.h"
#include "core/operations/products.h"
#include "core/operations/updates.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/last_block.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/cuda/device/step_scalar.h"
#include "kernels/math/gradient_factor.h"

// Sums over many elements. Each is cut into parts by its sizes alone, parts are summed in a fixed
// order, and the parts' sums in theirs, by the block that arrives last: the same call gives the
// same bits on every GPU.
namespace starling::cuda {
namespace {

/// y[channel] (+)= the sum over the rows of x[rows][channels]; kCount channels to a thread. Threads
/// are laid out with blockDim.x over channels and blockDim.y over rows. Runs of a few rows gather
/// in the type of arithmetic, and go on in fp64. Of several parts of the rows each leaves its sums
/// in partial[parts][channels], for the last block of the channels' tile.
template <class T, int kCount>
__global__ void __launch_bounds__(kThreads)
    sum_rows_kernel(const T* x, Index rows, Index channels, Index rows_per_block, double* partial,
                    unsigned* arrivals, Compute<T>* y, bool accumulate) {
  using C = Compute<T>;
  constexpr int kRun = 16;
  __shared__ double sums[kThreads * kCount];
  const Index first_channel = Index{blockIdx.x} * blockDim.x * kCount;
  const Index channel = first_channel + Index{threadIdx.x} * kCount;
  const Index first = Index{blockIdx.y} * rows_per_block, last = min(first + rows_per_block, rows);
  double total[kCount] = {};
  if (channel < channels) {
    for (Index r = first + threadIdx.y; r < last; r += Index{kRun} * blockDim.y) {
      C run[kCount] = {};
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        const Index row = r + Index{blockDim.y} * k;
        if (row >= last) break;
        C values[kCount];
        load_wide<kCount>(x + row * channels + channel, values);
#pragma unroll
        for (int i = 0; i < kCount; ++i) run[i] += values[i];
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) total[i] += static_cast<double>(run[i]);
    }
  }
  const unsigned width = blockDim.x * kCount, thread = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[thread * kCount + static_cast<unsigned>(i)] = total[i];
  __syncthreads();
  const auto give = [&](Index to, double sum) {
    y[to] = static_cast<C>(accumulate ? static_cast<double>(y[to]) + sum : sum);
  };
  const unsigned column = thread;
  const Index own = first_channel + column;
  if (column < width && own < channels) {
    double sum = 0.0;
    for (unsigned k = 0; k < blockDim.y; ++k) sum += sums[k * width + column];
    if (gridDim.y == 1) return give(own, sum);
    partial[Index{blockIdx.y} * channels + own] = sum;
  }
  if (gridDim.y == 1 || !last_block(arrivals + blockIdx.x, gridDim.y)) return;
  // Threads that share a column take every lanes-th part; width is a power of two up to kThreads.
  const unsigned lanes = kThreads / width, lane = thread / width;
  const Index shared_column = first_channel + thread % width;
  double sum = 0.0;
  if (shared_column < channels) {
#pragma unroll 8
    for (Index part = lane; part < gridDim.y; part += lanes)
      sum += partial[part * channels + shared_column];
  }
  sums[thread] = sum;
  __syncthreads();
  if (column >= width || own >= channels) return;
  for (unsigned k = 1; k < lanes; ++k) sum += sums[k * width + column];
  give(own, sum);
}

/// How sum_rows_kernel cuts x[rows][channels]: a function of these two alone.
struct RowParts {
  unsigned threads_x = 1, threads_y = kThreads;
  Index tiles = 1, parts = 1, rows_per_part = 0;

  RowParts(Index rows, Index channels, int per_thread, Index most_parts) {
    const Index packs = (channels + per_thread - 1) / per_thread;
    while (threads_x < 32 && static_cast<Index>(threads_x) < packs) threads_x *= 2;
    threads_y = kThreads / threads_x;
    tiles = (packs + threads_x - 1) / threads_x;
    const Index wanted = (rows + threads_y * 16 - 1) / (threads_y * 16);
    parts = std::clamp<Index>(wanted, 1, std::clamp<Index>(512 / tiles, 1, most_parts));
    rows_per_part = (rows + parts - 1) / parts;
  }
};

constexpr Index kBlock = 4096;  ///< elements whose squares are one term, as on the CPU
constexpr int kLanes = 32;      ///< element i of a block belongs to chain i mod 32, as on the CPU
constexpr int kDistanceThreads = 128;
constexpr int kDistanceChains = 32;  ///< term b belongs to chain b mod 32, as on the CPU

template <class T, bool kDifference>
STARLING_HD double difference(T x, T y) {
  const double a = static_cast<double>(widen(x));
  if constexpr (kDifference) return a - static_cast<double>(widen(y));
  return a;
}

/// sums[b] = Σ (x - y)² over block b, kCount neighbouring chains to a thread; and total += the
/// sums: those of a chain one after another, and the chains one after another, as on the CPU.
template <class T, int kCount, bool kDifference>
__global__ void __launch_bounds__(kDistanceThreads)
    squared_distances(const T* x, const T* y, Index n, Index blocks, double* sums,
                      unsigned* arrivals, double* total) {
  constexpr int kTeam = kLanes / kCount, kTeams = kDistanceThreads / kTeam, kUnroll = 8;
  __shared__ double lanes[kDistanceThreads * kCount];
  const int team = static_cast<int>(threadIdx.x) / kTeam,
            member = static_cast<int>(threadIdx.x) % kTeam;
  for (Index first = Index{blockIdx.x} * kTeams; first < blocks;
       first += Index{gridDim.x} * kTeams) {
    const Index block = first + team, offset = block * kBlock;
    const int count = block < blocks ? static_cast<int>(min(kBlock, n - offset)) : 0,
              rows = count / kLanes;
    double lane[kCount] = {};
    const auto add = [&](const T(&a)[kCount], const T(&b)[kCount]) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const double d = difference<T, kDifference>(a[i], b[i]);
        lane[i] += d * d;
      }
    };
    const Index mine = offset + member * kCount;
    int r = 0;
    for (; r + kUnroll <= rows; r += kUnroll) {
      T a[kUnroll][kCount], b[kUnroll][kCount] = {};
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        load<kCount>(x + mine + (r + u) * kLanes, a[u]);
        if (kDifference) load<kCount>(y + mine + (r + u) * kLanes, b[u]);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) add(a[u], b[u]);
    }
    for (; r < rows; ++r) {
      T a[kCount], b[kCount] = {};
      load<kCount>(x + mine + r * kLanes, a);
      if (kDifference) load<kCount>(y + mine + r * kLanes, b);
      add(a, b);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      lanes[threadIdx.x * kCount + static_cast<unsigned>(i)] = lane[i];
    __syncthreads();
    if (member == 0 && block < blocks) {
      double sum = 0.0;
      for (int i = 0; i < kLanes; ++i) sum += lanes[team * kLanes + i];
      for (Index i = offset + Index{rows} * kLanes; i < offset + count; ++i) {
        const double d = difference<T, kDifference>(x[i], kDifference ? y[i] : x[i]);
        sum += d * d;
      }
      sums[block] = sum;
    }
    __syncthreads();
  }
  if (!last_block(arrivals, gridDim.x)) return;
  double chain = 0.0;
  if (threadIdx.x < kDistanceChains) {
#pragma unroll 8
    for (Index b = threadIdx.x; b < blocks; b += kDistanceChains) chain += sums[b];
    lanes[threadIdx.x] = chain;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kDistanceChains; ++i) chain += lanes[i];
  *total += chain;
}

constexpr int kControlThreads = 256;

__global__ void __launch_bounds__(kControlThreads)
    gradient_control_kernel(const double* totals, Index count, StepScalar<double> scale,
                            double clip, bool check_finite, double* control) {
  __shared__ double stage[kControlThreads];
  double sum = 0.0;  // one after another, as on the CPU; the other threads fetch
  for (Index first = 0; first < count; first += kControlThreads) {
    const int here = static_cast<int>(min(Index{kControlThreads}, count - first));
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < here) stage[threadIdx.x] = totals[first + threadIdx.x];
    __syncthreads();
    if (threadIdx.x != 0) continue;
#pragma unroll 8
    for (int i = 0; i < here; ++i) sum += stage[i];
  }
  if (threadIdx.x != 0) return;
  const math::GradientFactor result = math::gradient_factor(sum, scale.get(), clip, check_finite);
  control[0] = result.factor;
  control[1] = result.skip;
}

}  // namespace

void CudaBackend::issue(const SumRows& args) {
  const Index channels = args.x.shape().back(), rows = args.x.elements() / channels;
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    using Y = Compute<T>;
    const T* x = args.x.data<T>();
    Y* y = args.y.data<Y>();
    const auto run = [&]<int kCount>() {
      const RowParts parts(rows, channels, kCount, 256);
      const Tensor partial =
          parts.parts > 1 ? scratch(parts.parts * channels, DType::kFloat64) : Tensor();
      const Launch how{{static_cast<unsigned>(parts.tiles), static_cast<unsigned>(parts.parts)},
                       {parts.threads_x, parts.threads_y},
                       handle()};
      launch(sum_rows_kernel<T, kCount>, how, x, rows, channels, parts.rows_per_part,
             partial ? partial.data<double>() : nullptr, arrivals(), y, args.accumulate);
    };
    with_packs<T>(channels, run, x);
  });
}

void CudaBackend::issue(const SquaredDistance& args) {
  double* total = args.totals.data<double>() + args.index;
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    const Index n = args.x.elements(), blocks = (n + kBlock - 1) / kBlock;
    const T* x = args.x.data<T>();
    const T* y = optional<T>(args.y);
    if (n == 0) return;
    const Tensor sums = scratch(blocks, DType::kFloat64);
    const auto run = [&]<int kCount>() {
      const unsigned grid = blocks_for(blocks, kDistanceThreads * kCount / kLanes);
      launch(y ? squared_distances<T, kCount, true> : squared_distances<T, kCount, false>,
             {{grid}, {kDistanceThreads}, handle()}, x, y, n, blocks, sums.data<double>(),
             arrivals(), total);
    };
    with_packs<T>(kBlock, run, x, y);
  });
}

void CudaBackend::issue(const GradientControl& args) {
  const auto scale = step_scalar<double>(
      args.scale, [at = args.scale](const StepValues& now, const StepValues& then) {
        return at * (then.loss_scale / now.loss_scale);
      });
  launch(gradient_control_kernel, {{1}, {kControlThreads}, handle()},
         args.totals.data<double>() + args.first, args.count, scale, args.clip, args.check_finite,
         args.control.data<double>());
}

}  // namespace starling::cuda
