#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/operations/map.h"
#include "layers/layer.h"
#include "tests/cuda/graph_job.h"
#include "tests/cuda/support.h"
#include "tests/support/errors.h"

// One rank: steps replayed as graphs have the bits of steps that are issued, with every recipe.
namespace starling::tests {
namespace {

using nlohmann::json;

GraphOutcome train(const json& config, const std::function<void(TrainConfig&)>& prepare = {}) {
  return run_alone({.config = config, .prepare = prepare}, gpu());
}

/// Runs it with and without graphs; returns the run with.
GraphOutcome compare(const json& config, const std::function<void(TrainConfig&)>& prepare = {}) {
  const GraphOutcome eager = train(with(config, {{"cuda_graphs", false}}), prepare),
                     replayed = train(config, prepare);
  CHECK(differences(replayed, eager) == "");
  CHECK(eager.launches == 0);
  CHECK(replayed.why_not == "");
  const auto steps = config["steps"].get<std::int64_t>(),
             accumulate = config.value("accumulate", std::int64_t{1});
  CHECK(replayed.losses.size() == static_cast<std::size_t>(steps));
  CHECK(replayed.launches == static_cast<std::uint64_t>((steps - replayed.warm_up) * accumulate));
  return replayed;
}

const json kAccumulating{
    {"optimizer",
     {{"type", "accum_adamw"}, {"lr", 0.01}, {"momentum", nullptr}, {"accum_iter", 3}}}};
const json kAdamW{{"optimizer", {{"type", "adamw"}, {"lr", 0.01}, {"momentum", nullptr}}}};

}  // namespace

TEST_CASE(
    "cuda/graph_training: replayed steps have the bits of issued ones, with every precision and "
    "kind of rule") {
  for (const std::string precision : {"fp32", "fp64", "bf16", "fp16"}) {
    CAPTURE(precision);
    const json config = with(graph_config(9), {{"precision", precision}});
    CHECK(compare(config).graphs == 1);
    CHECK(compare(with(config, kAdamW)).graphs == 1);
    if (precision == "fp16") continue;  // below
    const GraphOutcome accumulating = compare(with(config, kAccumulating));
    CHECK(accumulating.graphs == 3);
    CHECK(accumulating.warm_up == 4);
  }
}

TEST_CASE(
    "cuda/graph_training: micro-batches of a step are graphs of their own, and those that do the "
    "same share one") {
  const json config = graph_config(7);
  CHECK(compare(with(config, {{"accumulate", 2}})).graphs == 2);
  CHECK(compare(with(config, {{"accumulate", 3}})).graphs == 3);
  CHECK(compare(with(config, {{"accumulate", 4}, {"precision", "bf16"}})).graphs == 3);
  CHECK(compare(with(with(config, {{"accumulate", 3}}), kAccumulating)).graphs == 5);
}

TEST_CASE("cuda/graph_training: blocks that are computed again have the bits of what is kept") {
  const json vit{{"type", "vit_s_16"}, {"image_size", 6}, {"patch_size", 3}, {"layers", 2},
                 {"heads", 2},         {"width", 8},      {"mlp", 16},       {"dropout", 0.2}};
  for (const std::string precision : {"fp32", "bf16"}) {
    CAPTURE(precision);
    const json config = with(graph_config(5), {{"precision", precision}, {"model", vit}});
    const GraphOutcome kept = train(with(config, {{"recompute", "none"}}));
    for (const std::string recompute : {"cheap", "block"})
      CHECK(differences(compare(with(config, {{"recompute", recompute}})), kept) == "");
  }
}

TEST_CASE("cuda/graph_training: layers that are computed again, and what is made of layers") {
  const json layers = json::parse(R"([{"type": "conv2d", "out_channels": 4, "kernel_size": 3,
      "bias": false}, {"type": "checkpoint", "layers": [{"type": "batch_norm"}, {"type": "dropout", "p": 0.3},
      {"type": "squeeze_excite", "reduction": 2}]},
    {"type": "multiply", "branches": [[], [{"type": "group_norm", "num_groups": 2}]]},
    {"type": "upsample", "scale_factor": 2}, {"type": "adaptive_avg_pool2d", "output_size": 2},
    {"type": "conv_transpose2d", "out_channels": 3, "kernel_size": 2, "stride": 2},
    {"type": "global_avg_pool"}, {"type": "linear", "out_features": 4}])");
  compare(with(graph_config(6),
               {{"model", {{"type", "sequential"}, {"num_classes", 4}, {"layers", layers}}}}));
}

TEST_CASE("cuda/graph_training: clipping, updates after the pass, and all-reduce of one rank") {
  const json config = graph_config(6);
  compare(with(config, {{"clip_norm", 0.05}}));
  compare(with(config, {{"clip_norm", 0.05}, {"clip", "bucket"}}));
  compare(with(config, {{"sync", {{"update", "after_backward"}}}}));
  compare(with(config, {{"sync", {{"algorithm", "allreduce"}}}}));
}

TEST_CASE(
    "cuda/graph_training: fp16 goes on after overflows, each phase of the rule with its own "
    "graph") {
  const auto overflows = [](TrainConfig& config) {
    config.state.loss_scale.initial = 0x1p22;
    config.state.loss_scale.growth_interval = 2;
  };
  // Neither lamb's norms, nor muon's own direction, nor adafactor's squares follow the loss scale.
  for (const json& rule : {json::object(), kAccumulating,
                           json{{"optimizer", {{"type", "lamb"}, {"momentum", nullptr}}}},
                           json{{"optimizer", {{"type", "muon"}}}},
                           json{{"optimizer", {{"type", "adafactor"}, {"momentum", nullptr}}}}}) {
    CAPTURE(rule.dump());
    const json config =
        with(with(graph_config(30), {{"precision", "fp16"}, {"accumulate", 2}, {"clip_norm", 1.0}}),
             rule);
    const GraphOutcome outcome = compare(config, overflows);
    const std::int64_t skipped = 30 + 1 - outcome.scale.optimizer_step;
    CHECK(skipped > outcome.warm_up);  // some of them in replayed steps
    CHECK(skipped < 20);
  }
}

TEST_CASE("cuda/graph_training: tests, checkpoints, an epoch's end and a resume change no bit") {
  const json plain =
      with(graph_config(14),
           {{"data", {{"limit", 30}}}, {"accumulate", 3}, {"schedule", {{"type", "constant"}}}});
  GraphOutcome wanted = train(with(plain, {{"cuda_graphs", false}}));
  const json stops = with(plain, {{"evaluate", {{"every_steps", 2}}},
                                  {"checkpoint", {{"every_steps", 5}, {"keep", 9}}}});
  CHECK(differences(train(stops), wanted) == "");
  const test::Folder folder;
  run_alone({.config = with(stops, {{"steps", 10}})}, gpu(), folder);
  const GraphOutcome resumed = run_alone({.config = stops, .resume_step = 5}, gpu(), folder);
  CHECK(resumed.launches == 3 * (14 - 5 - static_cast<std::uint64_t>(resumed.warm_up)));
  CHECK(differences(resumed, wanted) == "");
}

namespace {

/// Passes on what it gets; through its linear layer in the first passes alone.
class Forgetful final : public Layer {
  Shape build(const Shape& input) override {
    ConfigSection section(json{{"out_features", input[0]}}, "test");
    inner_ = &add_child("inner", layers().make("linear", "type", section), input);
    return input;
  }
  Variable compute(const Variable& x, Pass& pass) override {
    return passes_-- > 0 ? inner_->forward(x, pass) : x;
  }

  int passes_ = 4;  ///< one to trace shapes, and three steps
  Layer* inner_ = nullptr;
};

}  // namespace

TEST_CASE("cuda/graph_training: a parameter that gets no gradient in the captured pass is named") {
  const json config = with_layer<Forgetful>(graph_config(8), "test_forgetful", 5);
  const std::string text = test::error_of(ExitCode::kUsage, [&] { train(config); });
  CHECK(test::contains(text, "step 3"));
  CHECK(test::contains(text, "'5.inner.weight' got no gradient"));
  CHECK_FALSE(gpu().capturing());
}

TEST_CASE("cuda/graph_recipe: every loss is replayed, in fp16 with the loss scale of each step") {
  for (const json& loss :
       {json{{"type", "focal"}}, json{{"type", "bce_with_logits"}}, json{{"type", "mse"}},
        json{{"type", "l1"}}, json{{"type", "huber"}, {"delta", 0.5}},
        json{{"type", "cross_entropy"}, {"class_weights", {0.5, 2, 1, 1.5}}}}) {
    for (const std::string precision : {"fp32", "bf16", "fp16"}) {
      CAPTURE(loss.dump());
      CAPTURE(precision);
      compare(with(graph_config(8), {{"precision", precision}, {"loss", loss}}));
    }
  }
}

TEST_CASE(
    "cuda/graph_recipe: a moving average follows replayed steps, and statistics are measured "
    "between them") {
  const json recipe =
      with(graph_config(12), {{"ema", {{"decay", 0.8}, {"every", 2}}},
                              {"sync", {{"batch_norm", "recalibrate"}, {"recalibrate_batches", 3}}},
                              {"schedule", {{"type", "constant"}}},
                              {"evaluate", {{"every_steps", 5}}},
                              {"checkpoint", {{"every_steps", 7}, {"best", true}}}});
  for (const std::string precision : {"fp32", "fp16"}) {
    CAPTURE(precision);
    const json config = with(recipe, {{"precision", precision}});
    // Whatever is measured, training goes its way; and a run that is resumed goes on to the bit.
    const GraphOutcome straight = compare(config);
    CHECK(straight.tensors.count("ema.5.weight") == 1);
    CHECK(straight.tensors.at("ema.5.weight").bytes != straight.tensors.at("model.5.weight").bytes);
    const test::Folder folder;
    run_alone({.config = with(config, {{"steps", 7}})}, gpu(), folder);
    CHECK(differences(run_alone({.config = config, .resume_step = 7}, gpu(), folder), straight) ==
          "");
    const json nothing{{"ema", nullptr},
                       {"sync", {{"batch_norm", nullptr}, {"recalibrate_batches", nullptr}}}};
    const GraphOutcome without = train(with(config, nothing));
    CHECK(without.losses == straight.losses);
    for (const auto& [name, tensor] : without.tensors)
      CHECK(straight.tensors.at(name).bytes == tensor.bytes);
  }
}

TEST_CASE(
    "cuda/graph: streams that fork and join, eager work before and behind, and a capture that is "
    "given up") {
  Backend& backend = gpu();
  const Tensor x(backend, Shape{4096}, DType::kFloat32), y(backend, x.shape(), x.dtype()),
      z(backend, x.shape(), x.dtype());
  backend.fill(x, 1.0);
  std::vector<float> host(4096);
  REQUIRE(backend.begin_capture({}));
  CHECK_THROWS_AS(backend.copy_to_host(x, host.data()), Error);
  backend.abandon_capture();
  const auto on = [&](StreamKind stream, Event after, const auto& work) {
    const StreamScope scope(backend, stream);
    backend.wait(after);
    work();
    return backend.record();
  };
  REQUIRE(backend.begin_capture({}));
  const Event begun = backend.record();
  {
    const StreamScope scope(backend, StreamKind::kUpload);
    (void)backend.record();  // a stream that takes no part is used on
  }
  const Event doubled = on(StreamKind::kUpdate, begun, [&] {
    backend.map({MapFunction::kAdd, x, x, y});
  });
  const Event tripled = on(StreamKind::kCommunication, doubled, [&] {
    backend.map({MapFunction::kAdd, x, y, z});
  });
  backend.wait(tripled);
  backend.map({MapFunction::kAdd, y, z, x});
  const auto graph = backend.end_capture();
  for (int launch = 0; launch < 3; ++launch) graph->launch({});
  backend.map({MapFunction::kAdd, x, x, x});
  CHECK(host_copy(x) == std::vector<float>(4096, 250.0f));  // 5 · 5 · 5 · 2
}

}  // namespace starling::tests
