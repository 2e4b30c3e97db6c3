// The operation's GPU side. Left out where there is no nvcc.
#include "softsign.h"

#include <starling/cuda.h>

namespace mine {
namespace {

using namespace starling;
using cuda::Index;

constexpr int kThreads = 256;

template <class T>
__global__ void forward_kernel(const T* x, T* y, Index n) {
  const Index step = Index{gridDim.x} * blockDim.x;
  for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step)
    y[i] = softsign_of(x[i]);
}

template <class T>
__global__ void backward_kernel(const T* x, const T* dy, T* dx, Index n) {
  const Index step = Index{gridDim.x} * blockDim.x;
  for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step)
    dx[i] = dy[i] * softsign_slope(x[i]);
}

/// Enough blocks for n elements, on the stream that the backend computes on.
cuda::Launch launch_for(Backend& backend, Index n) {
  cuda::Launch how{};
  how.grid.x = cuda::blocks_for(n, kThreads);
  how.block.x = kThreads;
  how.stream = backend.native_stream();
  return how;
}

template <class T>
void forward(Backend& backend, const SoftsignForward& args) {
  const Index n = args.x.elements();
  cuda::launch_own(&forward_kernel<T>, launch_for(backend, n), args.x.data<T>(), args.y.data<T>(),
                   n);
}

template <class T>
void backward(Backend& backend, const SoftsignBackward& args) {
  const Index n = args.x.elements();
  cuda::launch_own(&backward_kernel<T>, launch_for(backend, n), args.x.data<T>(), args.dy.data<T>(),
                   args.dx.data<T>(), n);
}

const bool forward_on_gpu =
    softsign_forward().add(DeviceType::kCuda, [](Backend& backend, const SoftsignForward& args) {
      args.x.dtype() == DType::kFloat64 ? forward<double>(backend, args)
                                        : forward<float>(backend, args);
    });
const bool backward_on_gpu =
    softsign_backward().add(DeviceType::kCuda, [](Backend& backend, const SoftsignBackward& args) {
      args.x.dtype() == DType::kFloat64 ? backward<double>(backend, args)
                                        : backward<float>(backend, args);
    });

}  // namespace
}  // namespace mine
