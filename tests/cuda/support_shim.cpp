#include <doctest/doctest.h>

#include <memory>

#include "tests/cuda/support.h"
#include "tests/fakes/cuda/fake_libraries.h"
#include "tests/fakes/cuda/shim.h"

namespace starling::tests {

cuda::CudaBackend& gpu() {
  static const auto backend = std::make_unique<cuda::CudaBackend>(0, false, false, true);
  return *backend;
}

void in_every_order(const std::function<void()>& test) {
  struct Back {
    ~Back() { cuda::shim::set_order(cuda::shim::Order::kForward); }
  } back;
  for (const auto order :
       {cuda::shim::Order::kForward, cuda::shim::Order::kBackward, cuda::shim::Order::kShuffled}) {
    CAPTURE(static_cast<int>(order));
    cuda::shim::set_order(order, 7);
    test();
  }
}

std::unique_ptr<cuda::Compiler> compiler() {
  const cuda::shim::UsingLibraries stand_ins(true);
  return cuda::open_compiler({});
}

bool on_gpu() { return false; }

}  // namespace starling::tests
