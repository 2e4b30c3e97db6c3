#include "kernels/cuda/libraries/cudnn_finish.h"

#include <limits>

#include "core/error.h"
#include "kernels/cuda/device/block_reduce.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/cuda/runtime/launch.h"

namespace starling::cuda {

namespace {

/// Elements that a thread processes together: two packs of fp32, one of low precision
constexpr int kFinishGroup = 8;

template <class T>
__global__ void take_gradient_kernel(const T* from, float* to, Index n, bool accumulate,
                                     bool packs) {
  const Index threads = Index{gridDim.x} * blockDim.x,
              first = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  const Index whole = packs ? n / kFinishGroup * kFinishGroup : 0;
  for (Index i = first * kFinishGroup; i < whole; i += threads * kFinishGroup) {
    float value[kFinishGroup], before[kFinishGroup];
    load_wide<kFinishGroup>(from + i, value);
    if (accumulate) {
      load<kFinishGroup>(to + i, before);
      for (int k = 0; k < kFinishGroup; ++k) value[k] += before[k];
    }
    store<kFinishGroup>(value, to + i);
  }
  for (Index i = whole + first; i < n; i += threads)
    to[i] = (accumulate ? to[i] : 0.0f) + widen(from[i]);
}

/// One warp per query searches for a key that is not masked.
template <class T>
__global__ void __launch_bounds__(kThreads)
    clear_unseeing_kernel(const T* mask, Index mask_sample, Index mask_head, Index mask_query,
                          Index heads, Index queries, Index keys, Index rows, bool causal, T* y,
                          Index sample, Index head, Index place, Index depth, float* lse) {
  const Index row = Index{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= rows) return;
  const Index t = row % queries, h = row / queries % heads, n = row / queries / heads,
              end = causal ? min(keys, t + 1) : keys;
  const T* own = mask + n * mask_sample + h * mask_head + t * mask_query;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (Index first = 0; first < end; first += kWarp) {
    const Index j = first + lane;
    const bool seen = j < end && !(widen(own[j]) == -std::numeric_limits<float>::infinity());
    if (__any_sync(kFullWarp, seen)) return;
  }
  for (Index d = lane; d < depth; d += kWarp)
    y[n * sample + h * head + t * place + d] = narrow<T>(0.0f);
  if (lane == 0) lse[row] = std::numeric_limits<float>::infinity();
}

template <class F>
void type_of(const Tensor& x, F&& f) {
  switch (x.dtype()) {
    case DType::kFloat32: return f(float{});
    case DType::kBFloat16: return f(BFloat16{});
    case DType::kFloat16: return f(Float16{});
    default: break;
  }
  fail(ExitCode::kInternal, "cudnn", "a step on a {} tensor", name_of(x.dtype()));
}

}  // namespace

void take_gradient(const Tensor& from, const Tensor& to, bool accumulate, StreamHandle stream) {
  require(from.elements() == to.elements(), "cudnn", "a gradient of {} elements for {}",
          from.elements(), to.elements());
  type_of(from, [&](auto type) {
    using T = decltype(type);
    const T* source = from.data<T>();
    float* target = to.data<float>();
    launch(take_gradient_kernel<T>,
           {{blocks_for(from.elements(), kThreads, kFinishGroup)}, {kThreads}, stream}, source,
           target, from.elements(), accumulate, packable(source, target));
  });
}

void clear_masked_queries(const AttentionForward& args, StreamHandle stream) {
  const View &mask = args.mask, &y = args.y;
  const Index rows = args.lse.elements();
  type_of(y.tensor(), [&](auto type) {
    using T = decltype(type);
    launch(clear_unseeing_kernel<T>, {{blocks_for(rows, kThreads / kWarp)}, {kThreads}, stream},
           mask.data<T>(), mask.stride(0), mask.stride(1), mask.stride(2), y.shape()[1],
           y.shape()[2], mask.shape()[3], rows, args.causal, y.data<T>(), y.stride(0), y.stride(1),
           y.stride(2), y.shape()[3], args.lse.data<float>());
  });
}

}  // namespace starling::cuda
