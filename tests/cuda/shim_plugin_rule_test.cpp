#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "core/error.h"
#include "core/operations/updates.h"
#include "examples/plugin/sign.cu"
#include "kernels/gpu_update.h"
#include "kernels/open_backend.h"
#include "kernels/optimizer.h"
#include "tests/cuda/support.h"
#include "tests/cuda/update_side.h"
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
  CHECK(contains(error_of([&] { gpu().update({rule, args}); }), "shim_plugin_rule::Unknown"));
  for (const nlohmann::json& config : test::every_rule())
    CHECK(runs_on_gpu(*test::make_rule(config)));
}

}  // namespace starling::tests
