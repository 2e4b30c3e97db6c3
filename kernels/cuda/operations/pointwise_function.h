#pragma once

#include "core/pointwise_function.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/cuda/runtime/launch.h"

// The GPU side of a pointwise function of an author's own, in a .cu file of a plug-in:
//
//     STARLING_CUDA_POINTWISE(squareplus, mine::Squareplus)
//
// The struct lies in a header that the .cpp and the .cu share, in a namespace with a name. The name
// is any word, once a library.
namespace starling::cuda {

/// Packs of kCount numbers.
template <class F, class T, int kCount>
__global__ void __launch_bounds__(kThreads)
    pointwise_function_kernel(const T* x, const T* dy, T* y, Index packs) {
  for (Index p = Index{blockIdx.x} * kThreads + threadIdx.x; p < packs;
       p += Index{gridDim.x} * kThreads) {
    T in[kCount], gradient[kCount], out[kCount];
    load<kCount>(x + p * kCount, in);
    if (dy) load<kCount>(dy + p * kCount, gradient);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      out[i] = dy ? starling::detail::pointwise_gradient<F>(in[i], gradient[i])
                  : starling::detail::pointwise_value<F>(in[i]);
    store<kCount>(out, y + p * kCount);
  }
}

template <class F>
void launch_pointwise(Backend& backend, const PointwiseCall& call) {
  const Index n = call.x.elements();
  if (n == 0) return;
  dispatch_floating(call.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T *x = call.x.data<T>(), *dy = call.dy ? call.dy.data<T>() : nullptr;
    T* y = call.y.data<T>();
    const auto run = [&]<int kCount>() {
      const Index packs = n / kCount;
      launch_own(&pointwise_function_kernel<F, T, kCount>,
                 {.grid = {blocks_for(packs, kThreads)},
                  .block = {kThreads},
                  .stream = backend.native_stream()},
                 x, dy, y, packs);
    };
    with_packs<T>(n, run, x, dy ? dy : x, y);
  });
}

}  // namespace starling::cuda

#define STARLING_CUDA_POINTWISE(name, ...)              \
  static const bool starling_cuda_pointwise_##name =    \
      starling::pointwise_operation<__VA_ARGS__>().add( \
          starling::DeviceType::kCuda, &starling::cuda::launch_pointwise<__VA_ARGS__>);
