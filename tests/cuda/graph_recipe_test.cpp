#include <doctest/doctest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cuda/graph_job.h"
#include "tests/cuda/support.h"

// Recipes of training on a GPU: steps replayed as graphs have the bits of steps that are issued.
namespace starling::tests {
namespace {

using nlohmann::json;

GraphOutcome train_recipe(const json& config, std::int64_t resume_step, const test::Folder& folder) {
  register_builtins();
  const auto transport = make_single_transport();
  GraphOutcome outcome = run_graph_job({config, {}, {}, resume_step}, gpu(), *transport, folder / ".");
  outcome.losses = losses_in(folder);
  return outcome;
}

void compare_recipe(const json& config) {
  const test::Folder on, off;
  const GraphOutcome eager = train_recipe(with(config, {{"cuda_graphs", false}}), 0, off), replayed = train_recipe(config, 0, on);
  CHECK(differences(replayed, eager) == "");
  CHECK(replayed.graphs > 0);
}

}  // namespace

TEST_CASE("cuda/graph_recipe: every loss is replayed, in fp16 with the loss scale of each step") {
  for (const json& loss : {json{{"type", "focal"}}, json{{"type", "bce_with_logits"}}, json{{"type", "mse"}}, json{{"type", "l1"}},
                           json{{"type", "huber"}, {"delta", 0.5}}}) {
    for (const std::string precision : {"fp32", "bf16", "fp16"}) {
      CAPTURE(loss.dump());
      CAPTURE(precision);
      compare_recipe(with(graph_config(8), {{"precision", precision}, {"loss", loss}}));
    }
  }
}

TEST_CASE("cuda/graph_recipe: a moving average follows replayed steps, and statistics are measured between them") {
  const json recipe = with(graph_config(12), {{"ema", {{"decay", 0.8}, {"every", 2}}},
                                              {"sync", {{"batch_norm", "recalibrate"}, {"recalibrate_batches", 3}}},
                                              {"schedule", {{"type", "constant"}}},
                                              {"evaluate", {{"every_steps", 5}}},
                                              {"checkpoint", {{"every_steps", 7}, {"best", true}}}});
  for (const std::string precision : {"fp32", "fp16"}) {
    CAPTURE(precision);
    const json config = with(recipe, {{"precision", precision}});
    compare_recipe(config);
    // Whatever is measured, training goes its way; and a run that is resumed goes on to the bit.
    const test::Folder one, two;
    const GraphOutcome straight = train_recipe(config, 0, one);
    CHECK(straight.tensors.count("ema.5.weight") == 1);
    CHECK(straight.tensors.at("ema.5.weight").bytes != straight.tensors.at("model.5.weight").bytes);
    json first = config;
    first["steps"] = 7;
    train_recipe(first, 0, two);
    CHECK(differences(train_recipe(config, 7, two), straight) == "");
    json plain = config;
    plain.erase("ema");
    plain["sync"].erase("batch_norm");
    plain["sync"].erase("recalibrate_batches");
    const test::Folder three;
    const GraphOutcome without = train_recipe(plain, 0, three);
    CHECK(without.losses == straight.losses);
    for (const auto& [name, tensor] : without.tensors) CHECK(straight.tensors.at(name).bytes == tensor.bytes);
  }
}

}  // namespace starling::tests
