#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/cuda/cuda_backend.h"
#include "layers/functions.h"
#include "layers/layer.h"
#include "tests/cuda/graph_job.h"
#include "tests/fakes/cuda/fake_libraries.h"

// Whole runs of the trainer whose gradients stay in low precision, against runs that widen each: the same checkpoints and losses.
namespace starling::tests {
namespace {

using nlohmann::json;

/// Two convolutions of one weight, which is therefore a sum's, and one that every other pass in training leaves out.
class Irregular final : public Layer {
 public:
  static inline int passes = 0;

 private:
  Shape build(const Shape& input) override {
    const std::int64_t channels = input[2];
    const auto weight = [&](const char* name) {
      Parameter& made = add_parameter(name, Shape{channels, 3, 3, channels}, Init::normal(0.2), TensorLayout::kConvWeight);
      made.product = true;
      return &made;
    };
    shared_ = weight("shared");
    now_and_then_ = weight("now_and_then");
    return input;
  }
  Variable compute(const Variable& x, Pass& pass) override {
    const Window2d window{.kernel = {3, 3}, .padding = {1, 1}};
    Variable y = functions::conv2d(functions::conv2d(x, *shared_, nullptr, window, pass), *shared_, nullptr, window, pass);
    if (!pass.training || pass.backend.device() != DeviceType::kCuda || passes++ % 2 == 0) {
      y = functions::conv2d(y, *now_and_then_, nullptr, window, pass);
    }
    return y;
  }

  Parameter *shared_ = nullptr, *now_and_then_ = nullptr;
};

GraphOutcome train(const json& config, bool low, const test::Folder& folder, std::int64_t resume_step = 0,
                   const std::function<void(TrainConfig&)>& prepare = {}) {
  const cuda::shim::UsingLibraries libraries(true, low);
  Irregular::passes = 0;
  cuda::CudaBackend gpu(0, false, false, true);
  return run_alone({config, {}, prepare, resume_step}, gpu, folder);
}

/// Runs it both ways; returns the run with gradients in low precision.
GraphOutcome compare(const json& config, const std::function<void(TrainConfig&)>& prepare = {}) {
  const test::Folder low, wide;
  const GraphOutcome found = train(config, true, low, 0, prepare);
  CHECK(differences(found, train(config, false, wide, 0, prepare)) == "");
  return found;
}

json config_of(const std::string& precision, std::int64_t steps) {
  json config = with(graph_config(steps), {{"precision", precision}});
  json& layers = config["model"]["layers"];
  layers.insert(layers.begin() + 3, json{{"type", "conv2d"}, {"out_channels", 4}, {"kernel_size", 3}, {"padding", 1}});
  layers.insert(layers.begin() + 4, json{{"type", "gelu"}});
  return config;
}

}  // namespace

TEST_CASE("cuda/low gradients of runs: the same checkpoints, issued and as graphs, with accumulation and with clipping") {
  for (const std::string precision : {"bf16", "fp16"}) {
    CAPTURE(precision);
    const json config = config_of(precision, 7);
    CHECK(compare(config).why_not == "");
    compare(with(config, {{"cuda_graphs", false}}));
    compare(with(config, {{"accumulate", 2}}));
    compare(with(config, {{"clip_norm", 0.05}}));
    compare(with(config, {{"clip_norm", 0.05}, {"clip", "bucket"}}));
    compare(with(config, {{"sync", {{"algorithm", "allreduce"}}}}));
  }
}

TEST_CASE("cuda/low gradients of runs: a weight that is read twice, and one that some passes leave out") {
  for (const std::string precision : {"bf16", "fp16"}) {
    CAPTURE(precision);
    const json base = with(config_of(precision, 6), {{"cuda_graphs", false}, {"unused_parameters", "allow"}});
    const json config = with_layer<Irregular>(base, "test_irregular", 3);
    compare(config);
    compare(with(config, {{"accumulate", 2}}));
  }
}

TEST_CASE("cuda/low gradients of runs: steps in fp16 that overflow are skipped alike") {
  const GraphOutcome found = compare(config_of("fp16", 16), [](TrainConfig& config) {
    config.loss_scale.initial = 0x1p22;
    config.loss_scale.growth_interval = 2;
  });
  const std::int64_t skipped = 16 + 1 - found.scale.optimizer_step;
  CHECK(skipped > found.warm_up);  // some of them in replayed steps
  CHECK(skipped < 12);
}

TEST_CASE("cuda/low gradients of runs: a run goes on from a checkpoint as if it had not ended") {
  for (const std::string precision : {"bf16", "fp16"}) {
    CAPTURE(precision);
    const json config =
        with(config_of(precision, 10), {{"schedule", {{"type", "constant"}}}, {"checkpoint", {{"every_steps", 4}, {"keep", 9}}}});
    const test::Folder whole, parts;
    const GraphOutcome expected = train(config, false, whole);
    train(with(config, {{"steps", 6}}), true, parts);
    CHECK(differences(train(config, true, parts, 4), expected) == "");
  }
}

}  // namespace starling::tests
