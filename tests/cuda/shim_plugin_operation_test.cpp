#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

// A plug-in's operation on a GPU: the example of docs/extending.md.
#include "examples/plugin/softsign.cpp"
#include "examples/plugin/softsign.cu"
#include "examples/plugin/squareplus.cu"
#include "kernels/open_backend.h"
#include "tests/cuda/support.h"
#include "tests/fakes/cuda/recorder.h"
#include "tests/kernels/optimizer_reference.h"
#include "tests/operations/operation_table.h"

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
  return host_copy<T>(both);
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

TEST_CASE("cuda/plug-in operation: a pointwise function of one struct is what it is on a CPU") {
  const auto cpu = open_backend(DeviceType::kCpu, 1);
  const auto results = [](Backend& backend, DType dtype, std::int64_t n, std::int64_t offset) {
    const auto put = [&](std::uint64_t seed) {
      return to_tensor(backend, random_numbers(n, seed), Shape{n}, dtype, offset);
    };
    const Tensor x = put(1), dy = put(2), y(backend, Shape{n}, dtype), dx(backend, Shape{n}, dtype);
    pointwise_operation<mine::Squareplus>()(backend, {x, {}, y});
    pointwise_operation<mine::Squareplus>()(backend, {x, dy, dx});
    return std::vector<Numbers>{to_numbers(y), to_numbers(dx)};
  };
  in_every_order([&] {
    for (const DType dtype :
         {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (const std::int64_t n : {0, 1, 255, 4096}) {
        for (const std::int64_t offset : {0, 1}) {
          const auto found = results(gpu(), dtype, n, offset),
                     expected = results(*cpu, dtype, n, offset);
          for (std::size_t i = 0; i < 2; ++i)
            CHECK(distance(found[i], expected[i]) <= (is_low_precision(dtype) ? 8e-3 : 1e-6));
        }
      }
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
