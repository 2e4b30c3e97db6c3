#pragma once

#include <algorithm>
#include <cstddef>

#include "core/operations/map.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/cuda/device/row_grid.h"
#include "kernels/math/fast_float.h"
#include "kernels/math/map_functions.h"

// Evaluates expressions on the device. A thread evaluates several adjacent elements, so that each
// step is decoded once for all of them.
namespace starling::cuda {

/// An expression over tensors of T, or of T's type of arithmetic, with their layout. A: the type in
/// which the expression is evaluated. Strides are in elements. Slots hold the tensors' elements,
/// then constants, then results of steps.
template <class T, class A>
struct MapPlan {
  using Arithmetic = A;
  MapStep steps[kMapMostSteps];
  int count, tensors, slots;
  const void* in[kMapTensors];
  bool wide[kMapTensors];     ///< of T's type of arithmetic, not of T
  bool repeats[kMapTensors];  ///< constant along the last dimension
  A numbers[kMapMostNumbers];
  /// Dimensions except the last: `kept` ones that remain after a Reduce, then the reduced ones
  int kept, rank;
  Index size[Shape::kMaxRank], stride[kMapTensors][Shape::kMaxRank];
  Index length;  ///< of the last dimension

  MapPlan(const Expression& expression, const MapLayout& layout, DType type);
  /// Whether threads may process packs of this size: alignment, and dynamic shared memory.
  bool packs(int size_of_pack, std::size_t most_shared) const;
  STARLING_HD int slot_of_result(int step) const { return slots - count + step; }
  std::size_t shared_bytes(int size_of_pack) const {
    return static_cast<std::size_t>(slots) * kThreads * static_cast<std::size_t>(size_of_pack) *
           sizeof(A);
  }
};

template <class T, class A>
MapPlan<T, A>::MapPlan(const Expression& expression, const MapLayout& layout, DType type)
    : steps{},
      count(expression.count),
      tensors(static_cast<int>(expression.tensors())),
      slots(0),
      in{},
      wide{},
      repeats{},
      numbers{},
      kept(0),
      rank(0),
      size{},
      stride{},
      length(layout.size[static_cast<std::size_t>(layout.rank - 1)]) {
  int used = 0;  // of numbers[]
  for (int s = 0; s < count; ++s) {
    MapStep& step = steps[s] = expression.steps[static_cast<std::size_t>(s)];
    if (operands_of(step.function) == 1) step.b = step.a;
    for (const int k : {int{step.a}, int{step.b}}) {
      if (k >= kMapNumbers && k < kMapResults) used = std::max(used, k - kMapNumbers + 1);
    }
  }
  slots = tensors + used + count;
  const auto slot = [&](std::uint8_t k) {
    const int own = k < kMapNumbers   ? k
                    : k < kMapResults ? k - kMapNumbers + tensors
                                      : k - kMapResults + tensors + used;
    return static_cast<std::uint8_t>(own);
  };
  for (int s = 0; s < count; ++s)
    steps[s] = {steps[s].function, slot(steps[s].a), slot(steps[s].b)};
  for (std::size_t i = 0; i < expression.numbers.size(); ++i)
    numbers[i] = static_cast<A>(expression.numbers[i]);
  const auto last = static_cast<std::size_t>(layout.rank - 1);
  for (int k = 0; k < tensors; ++k) {
    const auto from = static_cast<std::size_t>(k);
    in[k] = expression.in[from].raw();
    wide[k] = expression.in[from].dtype() != type;
    repeats[k] = layout.stride[from][last] == 0;
  }
  for (const bool reduced : {false, true}) {
    for (std::size_t d = 0; d < last; ++d) {
      if (layout.reduced(d) != reduced) continue;
      size[rank] = layout.size[d];
      for (int k = 0; k < tensors; ++k)
        stride[k][rank] = layout.stride[static_cast<std::size_t>(k)][d];
      ++rank;
    }
    if (!reduced) kept = rank;
  }
}

template <class T, class A>
bool MapPlan<T, A>::packs(int size_of_pack, std::size_t most_shared) const {
  bool result = length % size_of_pack == 0 && shared_bytes(size_of_pack) <= most_shared;
  for (int k = 0; k < tensors; ++k) {
    if (repeats[k]) continue;
    result = result && packable(static_cast<const std::byte*>(in[k]));
    for (int d = 0; d < rank; ++d) result = result && stride[k][d] % size_of_pack == 0;
  }
  return result;
}

/// The offset in tensor k of row i of dimensions first … last - 1. Loops are not unrolled, since
/// that would need more predicate registers than there are.
template <class Plan>
__device__ __forceinline__ Index elements_to(const Plan& p, int k, int first, int last, Index i) {
  Index result = 0;
#pragma unroll 1
  for (int d = last - 1; d > first; --d) {
    const Quotient q = divide(i, p.size[d]);
    result += q.rest * p.stride[k][d];
    i = q.whole;
  }
  return last > first ? result + i * p.stride[k][first] : 0;
}

template <int kCount, class A, class S>
__device__ __forceinline__ void load_operand(const S* from, bool repeats, A (&to)[kCount]) {
  if (repeats || kCount == 1) {
    const A value = static_cast<A>(widen(*from));
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = value;
    return;
  }
  S stored[kCount];
  load<kCount>(from, stored);
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = static_cast<A>(widen(stored[i]));
}

/// The function, computed in F.
template <class F, MapFunction kFunction, int kCount, class A>
__device__ __forceinline__ void map_pack(const A (&a)[kCount], const A (&b)[kCount],
                                         A (&to)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    to[i] = static_cast<A>(math::map_function(kFunction, F(a[i]), F(b[i])));
}
/// Functions of many instructions, whose unrolling would exceed the registers.
constexpr bool is_long(MapFunction function) {
  switch (function) {
    case MapFunction::kPower:
    case MapFunction::kPowerSlope:
    case MapFunction::kPowerLog:
    case MapFunction::kLog1p:
    case MapFunction::kSin:
    case MapFunction::kCos:
    case MapFunction::kSoftplus: return true;
    default: return false;
  }
}
template <class F, class A>
__device__ __forceinline__ A long_function(MapFunction function, A a, A b) {
  switch (function) {
#define STARLING_MAP_LONG(name, operands, value)                                \
  case MapFunction::name:                                                       \
    if constexpr (is_long(MapFunction::name))                                   \
      return static_cast<A>(math::map_function(MapFunction::name, F(a), F(b))); \
    break;
    STARLING_MAP_FUNCTIONS(STARLING_MAP_LONG)
#undef STARLING_MAP_LONG
  }
  return a;
}

/// One step for kCount elements; long functions are not unrolled.
template <class F, int kCount, class A>
__device__ __forceinline__ void map_step(MapFunction function, const A (&a)[kCount],
                                         const A (&b)[kCount], A (&to)[kCount]) {
  switch (function) {
#define STARLING_MAP_PACK(name, operands, value)              \
  case MapFunction::name:                                     \
    if constexpr (kCount == 1 || !is_long(MapFunction::name)) \
      map_pack<F, MapFunction::name>(a, b, to);               \
    return;
    STARLING_MAP_FUNCTIONS(STARLING_MAP_PACK)
#undef STARLING_MAP_PACK
  }
}

/// Reads a thread's values in a slot. Slots are in dynamic shared memory, a column per thread,
/// since registers cannot be indexed dynamically.
template <int kCount, class A>
__device__ __forceinline__ void read_slot(int slot, A (&to)[kCount]) {
  const A* scratch = dynamic_shared<A>() + threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = scratch[(slot * kCount + i) * kThreads];
}

/// Evaluates the expression for kCount adjacent elements from `along` on, in row `row` of the
/// reduced dimensions and row `kept` of the remaining ones.
template <int kCount, class T, class A>
__device__ __forceinline__ void evaluate(const MapPlan<T, A>& p, Index kept, Index row, Index along,
                                         A (&values)[kCount]) {
  using F = math::Fast<T, A>;
  A* scratch = dynamic_shared<A>() + threadIdx.y * blockDim.x + threadIdx.x;
  const auto put = [&](int slot, const A(&from)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) scratch[(slot * kCount + i) * kThreads] = from[i];
  };
#pragma unroll 1
  for (int k = 0; k < p.tensors; ++k) {
    const Index element = elements_to(p, k, 0, p.kept, kept) +
                          elements_to(p, k, p.kept, p.rank, row) + (p.repeats[k] ? 0 : along);
    if (sizeof(T) == 2 && p.wide[k]) {
      load_operand(static_cast<const Compute<T>*>(p.in[k]) + element, p.repeats[k], values);
    } else {
      load_operand(static_cast<const T*>(p.in[k]) + element, p.repeats[k], values);
    }
    if (p.count == 0) return;
    put(k, values);
  }
#pragma unroll 1
  for (int s = 0; s < p.count; ++s) {
    const MapStep step = p.steps[s];
    const int result = p.slot_of_result(s);
    if (kCount > 1 && is_long(step.function)) {
#pragma unroll 1
      for (int i = 0; i < kCount; ++i) {
        scratch[(result * kCount + i) * kThreads] =
            long_function<F>(step.function, scratch[(step.a * kCount + i) * kThreads],
                             scratch[(step.b * kCount + i) * kThreads]);
      }
      read_slot(result, values);
      continue;
    }
    A a[kCount], b[kCount];
    read_slot(step.a, a);
    read_slot(step.b, b);
    map_step<F>(step.function, a, b, values);
    if (s + 1 < p.count) put(result, values);
  }
}
/// Stores the constants in their slots; called before a thread's first evaluate().
template <int kCount, class T, class A>
__device__ __forceinline__ void put_numbers(const MapPlan<T, A>& p) {
  A* scratch = dynamic_shared<A>() + threadIdx.y * blockDim.x + threadIdx.x;
  for (int k = p.tensors; k < p.slots - p.count; ++k) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      scratch[(k * kCount + i) * kThreads] = p.numbers[k - p.tensors];
  }
}

}  // namespace starling::cuda
