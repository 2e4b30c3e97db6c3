#include "kernels/open_backend.h"
#include "tests/cuda/support.h"

namespace starling::tests {

/// Never destroyed: cuDNN loads its parts when they are first needed, after this, so their exit
/// handlers run before ours would, and a handle or a plan that is destroyed then reaches into what
/// is gone. Programs end their backends before main does; here tests share one.
cuda::CudaBackend& gpu() {
  static Backend* const backend = open_backend(DeviceType::kCuda, BackendSettings{}).release();
  return static_cast<cuda::CudaBackend&>(*backend);
}

void in_every_order(const std::function<void()>& test) { test(); }

std::unique_ptr<cuda::Compiler> compiler() { return cuda::open_compiler({.device = gpu().info()}); }

bool on_gpu() { return true; }

}  // namespace starling::tests
