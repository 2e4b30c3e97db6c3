#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

// A plug-in's operation on a GPU: the example of docs/extending.md.
#include "examples/plugin/softsign.cpp"
#include "examples/plugin/softsign.cu"
#include "kernels/open_backend.h"
#include "tests/cuda/support.h"
#include "tests/fakes/cuda/recorder.h"
#include "tests/kernels/optimizer_reference.h"

namespace starling::tests {
namespace {

template <class T>
std::vector<T> forward_and_backward(Backend& backend, std::int64_t n) {
  const auto put = [&](unsigned seed) {
    Tensor tensor(backend, Shape{n}, DTypeOf<T>::value);
    backend.copy_from_host(test::normal_numbers<T>(static_cast<std::size_t>(n), seed).data(),
                           tensor);
    return tensor;
  };
  const Tensor x = put(1), dy = put(2);
  Tensor both(backend, Shape{2, n}, DTypeOf<T>::value);
  mine::softsign_forward()(backend, {x, both.slice(0, Shape{n})});
  mine::softsign_backward()(backend, {x, dy, both.slice(n, Shape{n})});
  std::vector<T> numbers(2 * static_cast<std::size_t>(n));
  backend.copy_to_host(both, numbers.data());
  return numbers;
}

}  // namespace

TEST_CASE("cuda/plug-in operation: the example has the CPU's bits on a GPU") {
  const auto cpu = open_backend(DeviceType::kCpu, 1);
  in_every_order([&] {
    for (const std::int64_t n : {1, 255, 5000}) {
      CHECK(forward_and_backward<float>(gpu(), n) == forward_and_backward<float>(*cpu, n));
      CHECK(forward_and_backward<double>(gpu(), n) == forward_and_backward<double>(*cpu, n));
    }
  });
}

TEST_CASE("cuda/plug-in operation: one launch on the current stream, without a copy or a wait") {
  const Tensor x(gpu(), Shape{64}, DType::kFloat32), y(gpu(), Shape{64}, DType::kFloat32);
  gpu().fill(x, 1.0);
  const StreamScope scope(gpu(), StreamKind::kUpdate);
  const auto calls = cuda::shim::recorded([&] { mine::softsign_forward()(gpu(), {x, y}); });
  REQUIRE(calls.size() == 1);
  CHECK(calls[0].kind == cuda::shim::CallKind::kLaunch);
  CHECK(calls[0].stream == gpu().native_stream());
}

}  // namespace starling::tests
