#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/cuda/graph_job.h"
#include "tests/cuda/support.h"

// Recipes of training on a GPU: steps replayed as graphs have the bits of steps that are issued.
namespace starling::tests {
namespace {

using nlohmann::json;

void compare_recipe(const json& config) {
  const GraphOutcome eager = run_alone({.config = with(config, {{"cuda_graphs", false}})}, gpu()),
                     replayed = run_alone({.config = config}, gpu());
  CHECK(differences(replayed, eager) == "");
  CHECK(replayed.graphs > 0);
}

}  // namespace

TEST_CASE("cuda/graph_recipe: every loss is replayed, in fp16 with the loss scale of each step") {
  for (const json& loss :
       {json{{"type", "focal"}}, json{{"type", "bce_with_logits"}}, json{{"type", "mse"}},
        json{{"type", "l1"}}, json{{"type", "huber"}, {"delta", 0.5}},
        json{{"type", "cross_entropy"}, {"class_weights", {0.5, 2, 1, 1.5}}}}) {
    for (const std::string precision : {"fp32", "bf16", "fp16"}) {
      CAPTURE(loss.dump());
      CAPTURE(precision);
      compare_recipe(with(graph_config(8), {{"precision", precision}, {"loss", loss}}));
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
    compare_recipe(config);
    // Whatever is measured, training goes its way; and a run that is resumed goes on to the bit.
    const GraphOutcome straight = run_alone({.config = config}, gpu());
    CHECK(straight.tensors.count("ema.5.weight") == 1);
    CHECK(straight.tensors.at("ema.5.weight").bytes != straight.tensors.at("model.5.weight").bytes);
    const test::Folder folder;
    run_alone({.config = with(config, {{"steps", 7}})}, gpu(), folder);
    CHECK(differences(run_alone({.config = config, .resume_step = 7}, gpu(), folder), straight) ==
          "");
    const json nothing{{"ema", nullptr},
                       {"sync", {{"batch_norm", nullptr}, {"recalibrate_batches", nullptr}}}};
    const GraphOutcome without = run_alone({.config = with(config, nothing)}, gpu());
    CHECK(without.losses == straight.losses);
    for (const auto& [name, tensor] : without.tensors)
      CHECK(straight.tensors.at(name).bytes == tensor.bytes);
  }
}

}  // namespace starling::tests
