#include <array>
#include <type_traits>

#include "core/operations/map.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/cuda/device/row_grid.h"
#include "kernels/math/map_functions.h"

// Maps. One function of whole tensors is a kernel of its own; of all else each step is looked up.
namespace starling::cuda {
namespace {

template <class T, MapFunction kFunction>
struct OneStep {
  static constexpr int kInputs = operands_of(kFunction);
  template <int N>
  STARLING_HD void operator()(Index, const T (&x)[kInputs][N], T (&y)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = math::map_function(kFunction, x[0][i], x[kInputs - 1][i]);
  }
};

/// Calls f with the function as a constant.
template <class F>
void with_function(MapFunction function, F f) {
  switch (function) {
#define STARLING_MAP_CONSTANT(name, operands, value) \
  case MapFunction::name: return f(std::integral_constant<MapFunction, MapFunction::name>{});
    STARLING_MAP_FUNCTIONS(STARLING_MAP_CONSTANT)
#undef STARLING_MAP_CONSTANT
  }
}

/// Any Map; strides in elements.
template <class T>
struct MapPlan {
  MapStep steps[kMapMostSteps];
  int count, tensors, rank;
  const void* in[kMapTensors];
  bool wide[kMapTensors];  ///< of the arithmetic's type, not y's
  Compute<T> numbers[kMapMostNumbers];
  Index size[Shape::kMaxRank], stride[kMapTensors][Shape::kMaxRank];
  Index places;
};

/// A thread's slots are its column of shared memory: registers have no index that is found at run
/// time.
template <class T>
__global__ void __launch_bounds__(kThreads) map_places(MapPlan<T> p, T* y) {
  using C = Compute<T>;
  __shared__ C slots[kMapSlots][kThreads];
  const auto slot = [&](int k) -> C& { return slots[k][threadIdx.x]; };
  for (int k = 0; k < kMapMostNumbers; ++k) slot(kMapNumbers + k) = p.numbers[k];
  const Index threads = Index{gridDim.x} * blockDim.x;
  for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < p.places; i += threads) {
    Index at[Shape::kMaxRank], rest = i;
#pragma unroll
    for (int d = Shape::kMaxRank - 1; d >= 0; --d) {
      if (d >= p.rank) continue;
      const Quotient q = divide(rest, p.size[d]);
      at[d] = q.rest;
      rest = q.whole;
    }
    for (int k = 0; k < p.tensors; ++k) {
      Index element = 0;
#pragma unroll
      for (int d = 0; d < Shape::kMaxRank; ++d) {
        if (d < p.rank) element += at[d] * p.stride[k][d];
      }
      slot(k) = p.wide[k] ? static_cast<const C*>(p.in[k])[element]
                          : widen(static_cast<const T*>(p.in[k])[element]);
    }
    for (int s = 0; s < p.count; ++s) {
      const MapStep step = p.steps[s];
      slot(kMapResults + s) = math::map_function(step.function, slot(step.a), slot(step.b));
    }
    y[i] = narrow<T>(slot(kMapResults + p.count - 1));
  }
}

template <class T>
void map_any(CudaBackend& backend, const Map& map, const MapLayout& layout) {
  MapPlan<T> plan{};
  plan.count = map.count;
  plan.rank = layout.rank;
  plan.places = map.y.elements();
  for (std::size_t s = 0; s < map.steps.size(); ++s) {
    plan.steps[s] = map.steps[s];
    if (operands_of(plan.steps[s].function) == 1) plan.steps[s].b = plan.steps[s].a;
  }
  for (std::size_t i = 0; i < map.numbers.size(); ++i)
    plan.numbers[i] = static_cast<Compute<T>>(map.numbers[i]);
  for (std::size_t d = 0; d < layout.size.size(); ++d) plan.size[d] = layout.size[d];
  for (std::size_t k = 0; k < map.in.size() && map.in[k]; ++k) {
    plan.in[k] = map.in[k].raw();
    plan.wide[k] = map.in[k].dtype() != map.y.dtype();
    for (std::size_t d = 0; d < layout.size.size(); ++d) plan.stride[k][d] = layout.stride[k][d];
    ++plan.tensors;
  }
  launch(map_places<T>, {{blocks_for(plan.places, kThreads)}, {kThreads}, backend.handle()}, plan,
         map.y.data<T>());
}

}  // namespace

void CudaBackend::issue(const Map& args) {
  if (args.y.elements() == 0) return;
  const MapLayout layout = layout_of(args);
  const MapStep& step = args.steps[0];
  const bool one = layout.plain && args.count == 1 && step.a == 0 &&
                   (operands_of(step.function) == 1 || step.b == 1);
  floating(args.y, [&](auto type) {
    using T = decltype(type);
    if (!one) return map_any<T>(*this, args, layout);
    with_function(step.function, [&](auto function) {
      using Step = OneStep<Compute<T>, decltype(function)::value>;
      std::array<const T*, static_cast<std::size_t>(Step::kInputs)> in{};
      for (std::size_t k = 0; k < in.size(); ++k) in[k] = args.in[k].template data<T>();
      pointwise<T, T>(handle(), args.y.elements(), in, args.y.data<T>(), Step{});
    });
  });
}

}  // namespace starling::cuda
