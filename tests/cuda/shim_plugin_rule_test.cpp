#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/operations/updates.h"
#include "examples/plugin/sign.cu"
#include "kernels/gpu_update.h"
#include "kernels/open_backend.h"
#include "kernels/optimizer.h"
#include "tests/cuda/support.h"
#include "tests/fakes/cuda/recorder.h"
#include "tests/kernels/optimizer_reference.h"
#include "tests/support/errors.h"

// The example's optimizer on a GPU: its .cu file is compiled here.
namespace shim_plugin_rule {

struct Unknown : mine::Sign {};

}  // namespace shim_plugin_rule

namespace starling::tests {
namespace {

using mine::Sign;
using shim_plugin_rule::Unknown;
using test::normal_numbers;

template <class T>
UpdateArgs make_args(Backend& backend, std::size_t n) {
  const auto put = [&](unsigned seed) {
    Tensor tensor(backend, Shape{static_cast<std::int64_t>(n)}, DTypeOf<T>::value);
    backend.copy_from_host(normal_numbers<T>(n, seed).data(), tensor);
    return tensor;
  };
  UpdateArgs args;
  args.x = args.x_out = put(1);
  args.gradient = put(2);
  args.states = {put(3)};
  args.received = {put(4)};
  args.weights = {0.25};
  args.self_weight = 0.75;
  args.decay = Tensor(backend, Shape{static_cast<std::int64_t>(n / 32)}, DType::kUInt8);
  backend.fill(args.decay, 1.0);
  args.lr = 0.1;
  return args;
}

template <class T>
std::vector<T> numbers_of(Backend& backend, const Tensor& tensor) {
  std::vector<T> result(static_cast<std::size_t>(tensor.elements()));
  backend.copy_to_host(tensor, result.data());
  return result;
}

template <class T>
void compare(const OptimizerRule& rule) {
  const auto cpu = open_backend(DeviceType::kCpu, 1);
  const std::size_t n = 4096 + 64;
  const UpdateArgs expected = make_args<T>(*cpu, n), found = make_args<T>(gpu(), n);
  cpu->update({rule, expected});
  gpu().update({rule, found});
  CHECK(numbers_of<T>(gpu(), found.x_out) == numbers_of<T>(*cpu, expected.x_out));
  CHECK(numbers_of<T>(gpu(), found.states[0]) == numbers_of<T>(*cpu, expected.states[0]));
}

std::string error_of(const std::function<void()>& body) {
  return test::error_of(ExitCode::kUsage, body);
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
    UpdateArgs args = make_args<float>(gpu(), 4096);
    if (each != &rule) args.states.push_back(Tensor(gpu(), args.x.shape(), DType::kFloat32));
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
  CHECK(named.find("the optimizer 'mine' has no GPU kernels") != std::string::npos);
  CHECK(named.find("STARLING_CUDA_RULE") != std::string::npos);
  const UpdateArgs args = make_args<float>(gpu(), 64);
  const std::string typed = error_of([&] { gpu().update({rule, args}); });
  CHECK(typed.find("shim_plugin_rule::Unknown") != std::string::npos);
  for (const nlohmann::json& config : test::every_rule())
    CHECK(runs_on_gpu(*test::make_rule(config)));
}

}  // namespace starling::tests
