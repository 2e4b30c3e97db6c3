#include <array>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/operations/map.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/map_places.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/cuda/device/row_grid.h"
#include "kernels/cuda/libraries/map_source.h"

// Maps. One function of whole tensors is a kernel of its own; so is, compiled when it first comes,
// what has many places. Of all else each step is looked up, once for a pack of places.
namespace starling::cuda {
namespace {

template <class T, MapFunction kFunction>
struct OneStep {
  static constexpr int kInputs = operands_of(kFunction);
  template <int N>
  STARLING_HD void operator()(Index, const Compute<T> (&x)[kInputs][N], Compute<T> (&y)[N]) const {
    using F = math::Fast<T>;
#pragma unroll
    for (int i = 0; i < N; ++i)
      y[i] =
          static_cast<Compute<T>>(math::map_function(kFunction, F(x[0][i]), F(x[kInputs - 1][i])));
  }
};

/// Functions that layers use individually, each with a separate kernel.
#define STARLING_MAPS_ALONE(X) \
  X(kAdd)                      \
  X(kSubtract)                 \
  X(kMultiply)                 \
  X(kSquare)                   \
  X(kRelu)                     \
  X(kRelu6) X(kGelu) X(kSilu) X(kReluGradient) X(kRelu6Gradient) X(kGeluGradient) X(kSiluGradient)

/// Calls f with the function as a constant; false where it has no kernel.
template <class F>
bool with_function(MapFunction function, F f) {
  switch (function) {
#define STARLING_MAP_CONSTANT(name) \
  case MapFunction::name: f(std::integral_constant<MapFunction, MapFunction::name>{}); return true;
    STARLING_MAPS_ALONE(STARLING_MAP_CONSTANT)
#undef STARLING_MAP_CONSTANT
    default: return false;
  }
}

/// The tensors that a Map writes, and the slots of all but the first.
template <class T>
struct MapOutputs {
  int count = 1;
  T* y[kMapOutputs] = {};
  int slot[kMapOutputs] = {};
};

/// Any Map, kCount neighbours to a thread.
template <class T, int kCount>
__global__ void __launch_bounds__(kThreads)
    map_places(MapPlan<T, Compute<T>> p, Index packs, MapOutputs<T> outputs) {
  put_numbers<kCount>(p);
  const Index threads = Index{gridDim.x} * blockDim.x, row_packs = p.length / kCount;
  for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < packs; i += threads) {
    const Quotient row = divide(i, row_packs);
    Compute<T> values[kCount];
    evaluate<kCount>(p, row.whole, 0, row.rest * kCount, values);
    store_narrow<kCount>(values, outputs.y[0] + i * kCount);
    // Unrolled: parameters that are found at run time would be copied to local memory.
#pragma unroll
    for (int r = 1; r < kMapOutputs; ++r) {
      if (r >= outputs.count) break;
      read_slot<kCount>(outputs.slot[r], values);
      store_narrow<kCount>(values, outputs.y[r] + i * kCount);
    }
  }
}

template <class T>
void map_any(CudaBackend& backend, const Map& map, const MapLayout& layout) {
  const MapPlan<T, Compute<T>> plan(map, layout, map.y.dtype());
  MapOutputs<T> outputs;
  outputs.y[0] = map.y.data<T>();
  bool aligned = packable(outputs.y[0]);
  for (const Map::Also& other : map.also) {
    if (!other.y) continue;
    outputs.slot[outputs.count] = plan.slot_of_result(other.slot - kMapResults);
    outputs.y[outputs.count++] = other.y.data<T>();
    aligned = aligned && packable(other.y.data<T>());
  }
  const auto run = [&]<int kCount>() {
    const Index packs = map.y.elements() / kCount;
    launch(map_places<T, kCount>,
           {{blocks_for(packs, kThreads)}, {kThreads}, backend.handle(), plan.shared_bytes(kCount)},
           plan, packs, outputs);
  };
  constexpr std::size_t kMostShared = 48 << 10;  // that a block gets without being asked for more
  if (aligned && plan.packs(Pack<T>::kSize, kMostShared))
    run.template operator()<Pack<T>::kSize>();
  else
    run.template operator()<1>();
}

}  // namespace

bool CudaBackend::compiled_map(const Map& args, const MapLayout& layout) {
  constexpr Index kFrom = 1 << 16;  // places; a kernel of fewer is no faster for it
  if (!compiler_ || args.y.elements() < kFrom || layout.rank > kMapOuter + 1) return false;
  const MapCall call = map_call(args, layout);
  return compiler_->launch(
      call.key, [&] { return map_text(args, layout, call.pack); },
      blocks_for(call.threads, kThreads, 1, std::numeric_limits<std::int32_t>::max()),
      call.arguments, handle(), capturing());
}

void CudaBackend::issue(const Map& args) {
  if (args.y.elements() == 0) return;
  const MapLayout layout = layout_of(args, args.y.shape(), args.y);
  const MapStep& step = args.steps[0];
  const bool one = layout.plain && args.count == 1 && !args.also[0].y && step.a == 0 &&
                   (operands_of(step.function) == 1 || step.b == 1);
  floating(args.y, [&](auto type) {
    using T = decltype(type);
    const bool done = one && with_function(step.function, [&](auto function) {
                        using Step = OneStep<T, decltype(function)::value>;
                        std::array<const T*, static_cast<std::size_t>(Step::kInputs)> in{};
                        for (std::size_t k = 0; k < in.size(); ++k)
                          in[k] = args.in[k].template data<T>();
                        pointwise<T, T>(handle(), args.y.elements(), in, args.y.data<T>(), Step{});
                      });
    if (!done && !compiled_map(args, layout)) map_any<T>(*this, args, layout);
  });
}

}  // namespace starling::cuda
