#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "kernels/cuda/cuda_backend.h"
#include "tests/cuda/graph_job.h"
#include "tests/cuda/held_device.h"
#include "tests/support/errors.h"

// Replayed steps in fp16: the device chooses the loss scale and the optimizer's step, with the bits of a host that waits for each answer.
namespace starling::tests {
namespace {

using nlohmann::json;

struct Outcome {
  GraphOutcome run;
  std::uint64_t host_waits = 0;
};

Outcome train(const json& config, bool chooses, bool lags) {
  setenv("STARLING_CHOOSE_SCALE", chooses ? "1" : "0", 1);
  Outcome outcome;
  cuda::CudaBackend gpu(0, false, false, true);
  // Grows until it overflows, again and again.
  const auto prepare = [](TrainConfig& read) { read.loss_scale = {.initial = 65536.0, .growth_interval = 2}; };
  const std::uint64_t waits = cuda::runtime_counters().host_waits;
  {
    std::optional<LaggingDevice> device;
    if (lags) device.emplace();
    outcome.run = run_alone({.config = config, .prepare = prepare}, gpu);
  }
  outcome.host_waits = cuda::runtime_counters().host_waits - waits;
  unsetenv("STARLING_CHOOSE_SCALE");
  return outcome;
}

}  // namespace

TEST_CASE("cuda/scale_choice: overflows and growth are met with the same bits, while answers are late") {
  constexpr std::int64_t kSteps = 30;
  for (const std::int64_t accumulate : {1, 3}) {
    for (const char* rule : {"adamw", "sgd"}) {
      CAPTURE(accumulate);
      CAPTURE(std::string(rule));
      json config = with(graph_config(kSteps), {{"precision", "fp16"}, {"accumulate", accumulate}, {"clip_norm", 0.5}, {"log_every", 10}});
      config["optimizer"] = {{"type", rule}, {"lr", 0.01}};
      const Outcome issued = train(with(config, {{"cuda_graphs", false}}), true, false);
      const Outcome chosen = train(config, true, true), waited = train(config, false, true);
      CHECK(issued.run.launches == 0);
      CHECK(chosen.run.launches > 20);
      CHECK(issued.run.scale.optimizer_step > 5);
      CHECK(issued.run.scale.optimizer_step < kSteps);  // some steps overflowed
      CHECK(chosen.run.scale == issued.run.scale);
      CHECK(waited.run.scale == issued.run.scale);
      CHECK(differences(chosen.run, issued.run) == "");
      CHECK(differences(waited.run, issued.run) == "");
      CHECK(chosen.host_waits < waited.host_waits);
    }
  }
}

TEST_CASE("cuda/scale_choice: another word than 0 or 1 in STARLING_CHOOSE_SCALE is one clear error") {
  setenv("STARLING_CHOOSE_SCALE", "no", 1);
  const std::string message = test::error_text([] {
    register_builtins();
    cuda::CudaBackend gpu(0, false, false, true);
    const auto transport = make_single_transport();
    const TrainConfig config = read_train_config(graph_config(2), "test", {});
    const StepGraphs graphs(config, {}, gpu, *transport);
  });
  unsetenv("STARLING_CHOOSE_SCALE");
  CHECK(message == "[config] STARLING_CHOOSE_SCALE is 'no' in the environment; use 0 or 1");
}

}  // namespace starling::tests
