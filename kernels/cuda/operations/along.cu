#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/operations/along.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/block_reduce.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/cuda/device/radix_sort.h"
#include "kernels/cuda/device/row_grid.h"
#include "kernels/cuda/operations/plain.h"
#include "kernels/cuda/runtime/launch.h"

// The largest of a line's numbers, and running sums. Of few numbers each is found by a look at the
// line; for more of them the lines are sorted. Long running sums are cut into parts by the sizes
// alone.
namespace starling::cuda {
namespace {

constexpr Index kFew = 16;          ///< up to this many numbers a line is read once for each
constexpr int kOfThread = 8;        ///< numbers of a line that a thread adds up
constexpr Index kMostCuts = 64;     ///< of a line whose running sums are made
constexpr Index kLeastCut = 16384;  ///< numbers of a part, at least

/// LinesAlong of x[outer, n, inner].
struct LinesAlong {
  Index outer, n, inner;
  explicit LinesAlong(const Tensor& x)
      : outer(x.shape()[0]), n(x.shape()[1]), inner(x.shape()[2]) {}
  STARLING_HD Index count() const { return outer * inner; }
  /// The offset of element i of a line in a tensor with lines of `size`.
  STARLING_HD Index at(Index line, Index i, Index size) const {
    const Quotient of = divide(line, inner);
    return (of.whole * size + i) * inner + of.rest;
  }
};

/// Whether a comes before b: NaN does before all.
template <class C>
STARLING_HD bool larger(C a, C b) {
  return a > b || (a != a && b == b);
}
struct Least {
  STARLING_HD std::int32_t operator()(std::int32_t a, std::int32_t b) const { return min(a, b); }
};

/// A block takes a line, and finds each number among those that come after the one before.
template <class T>
__global__ void __launch_bounds__(kThreads)
    look_for_largest(LinesAlong lines, Index k, const T* x, T* values, std::int32_t* index) {
  using C = Compute<T>;
  constexpr std::int32_t kNone = std::numeric_limits<std::int32_t>::max();
  __shared__ C shared_values[kThreads / kWarp];
  __shared__ std::int32_t shared_places[kThreads / kWarp];
  for (Index line = blockIdx.x; line < lines.count(); line += gridDim.x) {
    C before = C(0);
    std::int32_t place_before = kNone;  // kNone: nothing was found yet
    for (Index j = 0; j < k; ++j) {
      C best = -std::numeric_limits<C>::infinity();
      std::int32_t place = kNone;
      for (Index i = threadIdx.x; i < lines.n; i += kThreads) {
        const C value = widen(x[lines.at(line, i, lines.n)]);
        const bool taken = place_before != kNone &&
                           (larger(value, before) || (!larger(before, value) && i <= place_before));
        if (taken || (place != kNone && !larger(value, best))) continue;
        best = value;
        place = static_cast<std::int32_t>(i);
      }
      before = block_reduce<kThreads>(best, shared_values, Larger{});
      if (larger(before, best)) place = kNone;
      place_before = block_reduce<kThreads>(place, shared_places, Least{});
      if (threadIdx.x != 0) continue;
      const Index to = lines.at(line, j, k);
      if (values != nullptr) values[to] = x[lines.at(line, place_before, lines.n)];
      if (index != nullptr) index[to] = place_before;
    }
  }
}

/// What numbers are sorted by: their lines, then their values, from the largest on.
template <class T>
struct ValueKey {
  static constexpr int kValueBits = 8 * sizeof(T);
  using Bits =
      std::conditional_t<kValueBits == 16, std::uint16_t,
                         std::conditional_t<kValueBits == 32, std::uint32_t, std::uint64_t>>;
  LinesAlong lines;
  const T* x;
  int bits;

  __device__ unsigned digit(std::int32_t position, int shift) const {
    if (shift >= kValueBits) {
      const Quotient of = divide(position, lines.inner);
      const Index line = divide(of.whole, lines.n).whole * lines.inner + of.rest;
      return static_cast<unsigned>(line >> (shift - kValueBits)) % kDigits;
    }
    const T value = x[position];
    const Compute<T> number = widen(value);
    constexpr Bits kSign = Bits(Bits(1) << (kValueBits - 1));
    // 0 and -0 are equal, and all NaN.
    const Bits stored = number == Compute<T>(0) ? Bits(0) : std::bit_cast<Bits>(value);
    const Bits falling = number != number   ? Bits(0)
                         : (stored & kSign) ? stored
                                            : static_cast<Bits>(~(stored | kSign));
    return static_cast<unsigned>(falling >> shift) % kDigits;
  }
};

/// Rows are lines; items are their largest, whose positions lie first of the line's.
template <class T>
__global__ void take_first(LinesAlong lines, Index k, const std::int32_t* order, const T* x,
                           T* values, std::int32_t* index) {
  for_items(lines.count(), k, [&](Index line, Index j) {
    const Index position = order[line * lines.n + j], to = lines.at(line, j, k);
    if (values != nullptr) values[to] = x[position];
    if (index != nullptr) index[to] = static_cast<std::int32_t>(position / lines.inner % lines.n);
  });
}

/// How running sums are shared: a block takes threads.x neighbouring places of `inner` and
/// threads.z of `outer`, in each of which threads.y threads take kOfThread numbers at a time.
struct Running {
  LinesAlong lines;
  bool reverse;
  Index parts, each;   ///< of a line, and a part's numbers
  Index across, down;  ///< blocks over inner and outer

  __device__ Index at(Index outer, Index i, Index c) const {
    return (outer * lines.n + (reverse ? lines.n - 1 - i : i)) * lines.inner + c;
  }
};

/// Running sums y of each part, which continue from `totals`[line, part] of the parts before; or,
/// where y is null, the totals.
template <class T>
__global__ void __launch_bounds__(kThreads)
    running_sums(Running run, const T* x, double* totals, T* y) {
  __shared__ double sums[kThreads];
  const unsigned step = blockDim.x, height = blockDim.y,
                 own = (threadIdx.z * height + threadIdx.y) * step + threadIdx.x;
  for (Index block = blockIdx.x; block < run.parts * run.across * run.down; block += gridDim.x) {
    const Quotient piece = divide(block, run.parts), side = divide(piece.whole, run.across);
    const Index part = piece.rest, c = side.rest * step + threadIdx.x,
                outer = side.whole * blockDim.z + threadIdx.z,
                last = min((part + 1) * run.each, run.lines.n);
    const bool there = c < run.lines.inner && outer < run.lines.outer;
    double* const total = totals + (outer * run.lines.inner + c) * run.parts;
    double carry = 0.0;
    for (Index p = 0; y != nullptr && there && p < part; ++p) carry += total[p];
    for (Index tile = part * run.each; tile < last; tile += Index{height} * kOfThread) {
      const Index first = tile + threadIdx.y * kOfThread;
      double values[kOfThread], sum = 0.0;
#pragma unroll
      for (int r = 0; r < kOfThread; ++r) {
        if (there && first + r < last)
          sum += static_cast<double>(widen(x[run.at(outer, first + r, c)]));
        values[r] = sum;
      }
      sums[own] = sum;
      __syncthreads();
      for (unsigned distance = 1; distance < height; distance *= 2) {
        const double before = threadIdx.y >= distance ? sums[own - distance * step] : 0.0;
        __syncthreads();
        sums[own] += before;
        __syncthreads();
      }
      const double before = carry + (threadIdx.y > 0 ? sums[own - step] : 0.0);
      carry += sums[own + (height - 1 - threadIdx.y) * step];
#pragma unroll
      for (int r = 0; r < kOfThread; ++r) {
        if (y != nullptr && there && first + r < last)
          y[run.at(outer, first + r, c)] = narrow<T>(static_cast<Compute<T>>(before + values[r]));
      }
      __syncthreads();
    }
    if (y == nullptr && there && threadIdx.y == 0) total[part] = carry;
  }
}

/// The least power of two that is not below n, at most `most`.
unsigned power_for(Index n, unsigned most) {
  return static_cast<unsigned>(
      std::bit_ceil(static_cast<std::uint64_t>(std::clamp<Index>(n, 1, most))));
}

}  // namespace

void CudaBackend::issue(const TopK& args) {
  const LinesAlong lines(args.x);
  const Index k = args.k();
  if (k == 0 || lines.count() == 0) return;
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    T* values = optional<T>(args.values);
    std::int32_t* index = optional<std::int32_t>(args.index);
    if (k <= kFew) {
      launch(look_for_largest<T>, {{blocks_for(lines.count(), 1)}, {kThreads}, handle()}, lines, k,
             x, values, index);
      return;
    }
    const int line_bits = std::bit_width(static_cast<std::uint64_t>(lines.count() - 1));
    const ValueKey<T> key{lines, x, ValueKey<T>::kValueBits + line_bits};
    const Tensor order = sorted(*this, args.x.elements(), key);
    launch(take_first<T>, over_rows(lines.count(), k, handle()), lines, k,
           order.data<std::int32_t>(), x, values, index);
  });
}

void CudaBackend::issue(const CumulativeSum& args) {
  const LinesAlong lines(args.x);
  if (args.x.elements() == 0) return;
  const unsigned x = power_for(lines.inner, kWarp),
                 y = power_for((lines.n + kOfThread - 1) / kOfThread, kThreads / x),
                 z = std::min(64u, kThreads / (x * y));  // at most, of a block
  Running run{
      lines, args.reverse, 1, lines.n, (lines.inner + x - 1) / x, (lines.outer + z - 1) / z};
  run.parts = std::clamp<Index>(lines.n / kLeastCut, 1, kMostCuts);
  run.each = (lines.n + run.parts - 1) / run.parts;
  const Tensor totals = scratch(lines.count() * run.parts, DType::kFloat64);
  const Launch how{{blocks_for(run.parts * run.across * run.down, 1)}, {x, y, z}, handle()};
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    const T* from = args.x.data<T>();
    if (run.parts > 1)
      launch(running_sums<T>, how, run, from, totals.data<double>(), static_cast<T*>(nullptr));
    launch(running_sums<T>, how, run, from, totals.data<double>(), args.y.data<T>());
  });
}

}  // namespace starling::cuda
