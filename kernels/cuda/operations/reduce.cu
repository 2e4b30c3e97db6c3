#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <type_traits>

#include "core/operations/reduce.h"
#include "core/operations/updates.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/block_reduce.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/last_block.h"
#include "kernels/cuda/device/map_places.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/cuda/device/step_scalar.h"
#include "kernels/cuda/operations/plain.h"
#include "kernels/math/gradient_factor.h"

// Sums over many elements. Each is cut into parts by its sizes alone, parts are summed in a fixed
// order, and the parts' sums in theirs, by the block that arrives last: the same call gives the
// same bits on every GPU.
namespace starling::cuda {
namespace {

/// What two numbers become.
struct Fold {
  Reduction by;
  template <class V>
  STARLING_HD V operator()(V a, V b) const {
    if (by == Reduction::kSum) return a + b;
    if (by == Reduction::kLargest) return math::map_function(MapFunction::kMaximum, a, b);
    return math::map_function(MapFunction::kMinimum, a, b);
  }
  /// Changes no number.
  template <class V>
  STARLING_HD V nothing() const {
    constexpr V kInfinity = std::numeric_limits<V>::infinity();
    return by == Reduction::kSum ? V(0) : by == Reduction::kLargest ? -kInfinity : kInfinity;
  }
};

/// Where results go.
struct Results {
  void* y;
  DType type;
  double factor;
  bool accumulate;

  STARLING_HD void give(Index i, double result) const {
    switch (type) {
      case DType::kFloat64: return give(static_cast<double*>(y)[i], result);
      case DType::kFloat32: return give(static_cast<float*>(y)[i], result);
      case DType::kBFloat16: return give(static_cast<BFloat16*>(y)[i], result);
      default: return give(static_cast<Float16*>(y)[i], result);
    }
  }

 private:
  template <class Y>
  STARLING_HD void give(Y& to, double result) const {
    result *= factor;
    if (accumulate) result += static_cast<double>(widen(to));
    to = narrow<Y>(static_cast<Compute<Y>>(result));
  }
};

/// A tensor [images][rows][length] as it lies.
template <class T, Reduction kBy>
struct Plain {
  using Arithmetic = Compute<T>;
  static constexpr int kUnroll = 16;
  const T* x;
  Index rows, length;

  static constexpr Fold fold() { return {kBy}; }
  template <int kCount>
  __device__ void begin() const {}
  template <int kCount>
  __device__ void values(Index image, Index row, Index along, Arithmetic (&to)[kCount]) const {
    load_wide<kCount>(x + (image * rows + row) * length + along, to);
  }
};

/// Any expression; an image is a place in the dimensions that stay, but for the last.
template <class T, class A>
struct Any {
  using Arithmetic = A;
  static constexpr int kUnroll = 1;
  MapPlan<T, A> plan;
  Reduction by;

  STARLING_HD Fold fold() const { return {by}; }
  template <int kCount>
  __device__ void begin() const {
    put_numbers<kCount>(plan);
  }
  template <int kCount>
  __device__ void values(Index image, Index row, Index along, A (&to)[kCount]) const {
    evaluate<kCount>(plan, image, row, along, to);
  }
};

/// How reduce_rows cuts [images][rows][length]: a function of these alone.
struct RowParts {
  unsigned threads_x = 1, threads_y = kThreads;
  Index tiles = 1, parts = 1, rows_per_part = 0;

  RowParts(Index images, Index rows, Index length, int per_thread, Index most_parts) {
    const Index packs = (length + per_thread - 1) / per_thread;
    while (threads_x < 32 && static_cast<Index>(threads_x) < packs) threads_x *= 2;
    threads_y = kThreads / threads_x;
    tiles = (packs + threads_x - 1) / threads_x;
    const Index wanted = (rows + threads_y * 16 - 1) / (threads_y * 16);
    parts = std::clamp<Index>(wanted, 1, std::clamp<Index>(512 / (tiles * images), 1, most_parts));
    rows_per_part = (rows + parts - 1) / parts;
  }
};

/// y[image][column] = the results over the rows; kCount columns to a thread. Threads are laid out
/// with blockDim.x over columns and blockDim.y over rows. Runs of a few rows gather in the type of
/// arithmetic, and continue in fp64. Of several parts of the rows each leaves its results in
/// partial[image][parts][length], for the last block of the columns' tile. One block a
/// multiprocessor is said to be enough: without that, ptxas spills for sm_100 though most registers
/// are free.
template <class Source, int kCount>
__global__ void __launch_bounds__(kThreads, 1)
    reduce_rows(Source source, Index tiles, Index rows, Index length, Index rows_per_block,
                double* partial, unsigned* arrivals, Results results) {
  using C = typename Source::Arithmetic;
  constexpr int kRun = 16;
  __shared__ double sums[kThreads * kCount];
  const Fold fold = source.fold();
  const unsigned width = blockDim.x * kCount, thread = threadIdx.y * blockDim.x + threadIdx.x;
  const Quotient tile = divide(blockIdx.x, tiles);
  const Index image = tile.whole, first_column = tile.rest * width;
  const Index column = first_column + Index{threadIdx.x} * kCount, own = first_column + thread;
  const Index first = Index{blockIdx.y} * rows_per_block, last = min(first + rows_per_block, rows);
  source.template begin<kCount>();
  double total[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) total[i] = fold.template nothing<double>();
  for (Index r = first + threadIdx.y; column < length && r < last; r += Index{kRun} * blockDim.y) {
    C run[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) run[i] = fold.template nothing<C>();
#pragma unroll Source::kUnroll
    for (int k = 0; k < kRun; ++k) {
      const Index row = r + Index{blockDim.y} * k;
      if (row >= last) break;
      C values[kCount];
      source.template values<kCount>(image, row, column, values);
#pragma unroll
      for (int i = 0; i < kCount; ++i) run[i] = fold(run[i], values[i]);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) total[i] = fold(total[i], static_cast<double>(run[i]));
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[thread * kCount + static_cast<unsigned>(i)] = total[i];
  __syncthreads();
  if (thread < width && own < length) {
    double sum = sums[thread];
    for (unsigned k = 1; k < blockDim.y; ++k) sum = fold(sum, sums[k * width + thread]);
    if (gridDim.y == 1) return results.give(image * length + own, sum);
    partial[(image * gridDim.y + blockIdx.y) * length + own] = sum;
  }
  if (gridDim.y == 1 || !last_block(arrivals + blockIdx.x, gridDim.y)) return;
  // Threads that share a column take every lanes-th part; width is a power of two up to kThreads.
  const unsigned lanes = kThreads / width, lane = thread / width;
  const Index shared_column = first_column + thread % width;
  double sum = fold.template nothing<double>();
  if (shared_column < length) {
#pragma unroll 8
    for (Index part = lane; part < gridDim.y; part += lanes)
      sum = fold(sum, partial[(image * gridDim.y + part) * length + shared_column]);
  }
  sums[thread] = sum;
  __syncthreads();
  if (thread >= width || own >= length) return;
  for (unsigned k = 1; k < lanes; ++k) sum = fold(sum, sums[k * width + thread]);
  results.give(image * length + own, sum);
}

/// y[image] = the result over all of [rows][packs]; a warp to an image, blockDim.y of them, or a
/// block, or several blocks with a part of it each.
template <class Source, int kCount>
__global__ void __launch_bounds__(kThreads, 1)
    reduce_images(Source source, Index images, Index rows, Index packs, Index packs_per_block,
                  double* partial, unsigned* arrivals, Results results) {
  using C = typename Source::Arithmetic;
  __shared__ double shared[kThreads / kWarp];
  const Fold fold = source.fold();
  const Index image = Index{blockIdx.x} * blockDim.y + threadIdx.y;
  source.template begin<kCount>();
  double total = fold.template nothing<double>();
  if (image < images) {
    const Index first = Index{blockIdx.y} * packs_per_block,
                last = min(first + packs_per_block, rows * packs);
#pragma unroll Source::kUnroll / 4 + 1
    for (Index i = first + threadIdx.x; i < last; i += blockDim.x) {
      const Quotient row = rows == 1 ? Quotient{0, i} : divide(i, packs);
      C values[kCount];
      source.template values<kCount>(image, row.whole, row.rest * kCount, values);
      C run = values[0];
#pragma unroll
      for (int k = 1; k < kCount; ++k) run = fold(run, values[k]);
      total = fold(total, static_cast<double>(run));
    }
  }
  total = blockDim.y > 1 ? warp_reduce(total, fold) : block_reduce<kThreads>(total, shared, fold);
  if (gridDim.y == 1) {
    if (threadIdx.x == 0 && image < images) results.give(image, total);
    return;
  }
  if (threadIdx.x == 0) partial[image * gridDim.y + blockIdx.y] = total;
  if (!last_block(arrivals + blockIdx.x, gridDim.y)) return;
  total = fold.template nothing<double>();
  for (Index part = threadIdx.x; part < gridDim.y; part += kThreads)
    total = fold(total, partial[image * gridDim.y + part]);
  total = block_reduce<kThreads>(total, shared, fold);
  if (threadIdx.x == 0) results.give(image, total);
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

namespace {

/// Sizes that a Reduce comes down to: the last dimension stays, or `lines` of it go.
struct Extents {
  Index images = 1, rows = 1, length = 1;
  bool lines = false;

  explicit Extents(const MapLayout& layout) {
    const auto last = static_cast<std::size_t>(layout.rank - 1);
    for (std::size_t d = 0; d < last; ++d) (layout.reduced(d) ? rows : images) *= layout.size[d];
    length = layout.size[last];
    lines = layout.reduced(last);
  }
};

template <int kCount, class Source>
void launch_reduce(CudaBackend& backend, const Source& source, const Extents& e, std::size_t shared,
                   const Results& results) {
  Launch how{.stream = backend.handle(), .shared_bytes = shared};
  if (e.lines) {
    const Index packs = e.length / kCount, all = e.rows * packs;
    const bool warps = all <= 1024;
    const Index most = std::clamp<Index>(512 / e.images, 1, 256),
                parts = warps ? 1 : std::clamp<Index>(all / (kThreads * 16), 1, most),
                each = (all + parts - 1) / parts;
    const Tensor partial =
        parts > 1 ? backend.scratch(e.images * parts, DType::kFloat64) : Tensor();
    const unsigned teams = warps ? kThreads / kWarp : 1;
    how.grid = {static_cast<unsigned>((e.images + teams - 1) / teams),
                static_cast<unsigned>(parts)};
    how.block = {kThreads / teams, teams};
    return launch(reduce_images<Source, kCount>, how, source, e.images, e.rows, packs, each,
                  partial ? partial.data<double>() : nullptr, backend.arrivals(), results);
  }
  const RowParts parts(e.images, e.rows, e.length, kCount, 256);
  const Tensor partial = parts.parts > 1
                             ? backend.scratch(e.images * parts.parts * e.length, DType::kFloat64)
                             : Tensor();
  how.grid = {static_cast<unsigned>(e.images * parts.tiles), static_cast<unsigned>(parts.parts)};
  how.block = {parts.threads_x, parts.threads_y};
  launch(reduce_rows<Source, kCount>, how, source, parts.tiles, e.rows, e.length,
         parts.rows_per_part, partial ? partial.data<double>() : nullptr, backend.arrivals(),
         results);
}

template <class T, class A>
void reduce_expression(CudaBackend& backend, const Reduce& args, const MapLayout& layout,
                       DType type, const Results& results) {
  const Extents e(layout);
  const Any<T, A> source{{args, layout, type}, args.by};
  // Eight at once would leave registers too few.
  constexpr int kPack = std::is_same_v<A, double> ? 1 : std::min(4, Pack<T>::kSize);
  // In addition to the kernels' static shared memory
  const std::size_t most = (std::size_t{48} << 10) - kThreads * kPack * sizeof(double);
  if (source.plan.packs(kPack, most))
    launch_reduce<kPack>(backend, source, e, source.plan.shared_bytes(kPack), results);
  else
    launch_reduce<1>(backend, source, e, source.plan.shared_bytes(1), results);
}

}  // namespace

void CudaBackend::issue(const Reduce& args) {
  if (args.y.elements() == 0) return;
  const Shape places = args.places();
  if (places.elements() == 0) {
    if (!args.accumulate) fill(args.y, 0.0);
    return;
  }
  const MapLayout layout = layout_of(args, places, args.y);
  const DType to = args.y.dtype();
  const Results results{args.y.raw(), to, args.factor, args.accumulate};
  const DType own = args.in[0].dtype();
  if (sums_squares(args) && layout.rank == 1 && layout.reduced(0) && args.factor == 1.0 &&
      (own == DType::kFloat32 || own == DType::kFloat64))
    return squared_norms_of(*this, std::span(&args.in[0], 1), args.y.data<double>(),
                            args.accumulate);
  const Tensor* x = &args.in[0];  // of the lowest type
  for (const Tensor& tensor : args.in) {
    if (tensor && is_low_precision(tensor.dtype())) x = &tensor;
  }
  floating(*x, [&](auto type) {
    using T = decltype(type);
    const Extents e(layout);
    const bool wider = to == DType::kFloat64 && x->dtype() != to;
    if (wider) return reduce_expression<T, double>(*this, args, layout, x->dtype(), results);
    if (args.count > 0 || layout.rank > (e.lines ? 2 : 3))
      return reduce_expression<T, Compute<T>>(*this, args, layout, x->dtype(), results);
    const T* from = x->data<T>();
    const auto plain = [&]<Reduction kBy>() {
      const Plain<T, kBy> source{from, e.rows, e.length};
      const auto run = [&]<int kCount>() { launch_reduce<kCount>(*this, source, e, 0, results); };
      with_packs<T>(e.length, run, from);
    };
    switch (args.by) {
      case Reduction::kSum: return plain.template operator()<Reduction::kSum>();
      case Reduction::kLargest: return plain.template operator()<Reduction::kLargest>();
      case Reduction::kLeast: return plain.template operator()<Reduction::kLeast>();
    }
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
