#include "kernels/open_backend.h"
#include "tests/cuda/support.h"

namespace starling::tests {

cuda::CudaBackend& gpu() {
  static const std::unique_ptr<Backend> backend = open_backend(DeviceType::kCuda, BackendSettings{});
  return static_cast<cuda::CudaBackend&>(*backend);
}

void in_every_order(const std::function<void()>& test) { test(); }

bool on_gpu() { return true; }

}  // namespace starling::tests
