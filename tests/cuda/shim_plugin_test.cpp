#include <doctest/doctest.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/operations/updates.h"
#include "examples/plugin/sign.cu"
#include "examples/plugin/softsign.cpp"
#include "examples/plugin/softsign.cu"
#include "examples/plugin/squareplus.cu"
#include "kernels/gpu_update.h"
#include "kernels/open_backend.h"
#include "kernels/optimizer.h"
#include "tests/cuda/support.h"
#include "tests/cuda/update_side.h"
#include "tests/fakes/cuda/recorder.h"
#include "tests/kernels/optimizer_reference.h"
#include "tests/operations/operation_table.h"
#include "tests/support/errors.h"

// The operation and the optimizer of docs/extending.md on a GPU: their .cu files are compiled here.
namespace shim_plugin {

struct Unknown : mine::Sign {};

}  // namespace shim_plugin

namespace starling::tests {
namespace {

using mine::Sign;
using shim_plugin::Unknown;
using test::contains;

template <class T>
void compare(const OptimizerRule& rule) {
  const auto cpu = open_backend(DeviceType::kCpu, 1);
  const UpdateCase how{.n = 4096 + 64, .steps = 3};
  UpdateSide<T> expected = bucket_side<T>(*cpu, how, 1), found = bucket_side<T>(gpu(), how, 1);
  compare_steps(rule, how, expected, found);
}

UpdateArgs args_on_gpu(const OptimizerRule& rule) {
  return bucket_side<float>(gpu(), {.n = 4096}, rule.facts().states.size()).args;
}

std::string error_of(const std::function<void()>& body) {
  return test::error_of(ExitCode::kUsage, body);
}

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

TEST_CASE(
    "cuda/plug-in rule: STARLING_CUDA_RULE gives a plug-in's optimizer the CPU's bits on a GPU") {
  const RuleKernel<Sign> rule(Sign{0.5, 0.25});
  CHECK(runs_on_gpu(rule));
  CHECK_NOTHROW(require_gpu_update(rule, "sign"));
  in_every_order([&] {
    compare<float>(rule);
    compare<double>(rule);
  });
}

TEST_CASE(
    "cuda/plug-in rule: one launch a bucket on the current stream, without a copy or a wait") {
  const RuleKernel<Sign> rule(Sign{0.5, 0.25});
  const auto adamw = test::make_rule("adamw", nlohmann::json::object());
  for (const OptimizerRule* each :
       {static_cast<const OptimizerRule*>(&rule), static_cast<const OptimizerRule*>(adamw.get())}) {
    const UpdateArgs args = args_on_gpu(*each);
    const StreamScope scope(gpu(), StreamKind::kUpdate);
    const auto calls = cuda::shim::recorded([&] { gpu().update({*each, args}); });
    REQUIRE(calls.size() == 1);
    CHECK(calls[0].kind == cuda::shim::CallKind::kLaunch);
    CHECK(calls[0].stream == gpu().handle());
  }
}

TEST_CASE("cuda/plug-in rule: without kernels for it the optimizer and the remedy are named") {
  const RuleKernel<Unknown> rule(Unknown{});
  CHECK(!runs_on_gpu(rule));
  const std::string named = error_of([&] { require_gpu_update(rule, "mine"); });
  CHECK(contains(named, "the optimizer 'mine' has no GPU kernels"));
  CHECK(contains(named, "STARLING_CUDA_RULE"));
  const UpdateArgs args = args_on_gpu(rule);
  CHECK(contains(error_of([&] { gpu().update({rule, args}); }), "shim_plugin::Unknown"));
  for (const nlohmann::json& config : test::every_rule())
    CHECK(runs_on_gpu(*test::make_rule(config)));
}

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
