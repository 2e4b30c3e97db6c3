#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/inference/model_file.h"
#include "apps/training/config/plugins.h"
#include "apps/training/trainer.h"
#include "tests/apps/trainer_run.h"
#include "tests/fakes/transport/fake_transport.h"

// Training at y, and x, which is tested and written.
namespace starling {
namespace {

using test::TrainerRun;
using test::value_of;

nlohmann::json schedule_free_config(const char* patch = "{}") {
  nlohmann::json config = nlohmann::json::parse(R"({
    "model": {"type": "resnet20", "num_classes": 4},
    "data": {"type": "synthetic", "image_size": 8, "classes": 4, "limit": 128, "test_limit": 32},
    "batch_size": 4, "steps": 30, "optimizer": {"type": "schedule_free_adamw", "lr": 0.02, "weight_decay": 0.1, "warmup_steps": 3},
    "sync": {"bucket_mb": 0.25, "topology": {"type": "ring"}}, "threads": 1})");
  config.merge_patch(nlohmann::json::parse(patch));
  return config;
}

/// The metrics of a file's model, in a run whose optimizer evaluates the parameters.
EvaluationResult test_of(const SafetensorsFile& file) {
  EvaluationResult result;
  FakeWorld(1).run([&](Transport& transport) {
    TrainerRun run(
        schedule_free_config(R"({"optimizer": {"type": "adamw", "warmup_steps": null}})"),
        transport);
    load_model_tensors(file, "test", "", *run.config.model);
    result = run.test();
  });
  return result;
}

const char* const kGrouped =
    R"({"optimizer": {"groups": [{"match": "bn", "lr_scale": 0.1, "weight_decay": 0}]}})";

}  // namespace

TEST_CASE(
    "schedule_free: tests measure, and the final model is, the mean of y + (1 - 1/β1) (z - y) over "
    "ranks") {
  register_builtins();
  for (const int ranks : {1, 2, 3}) {
    for (const char* patch : {"{}", kGrouped}) {
      CAPTURE(ranks);
      CAPTURE(patch);
      nlohmann::json json = schedule_free_config(patch);
      if (ranks == 3) json["sync"]["topology"]["type"] = "base-2";
      std::vector<SafetensorsFile> states(static_cast<std::size_t>(ranks));
      SafetensorsFile written;
      EvaluationResult tested;
      FakeWorld(ranks).run([&](Transport& transport) {
        TrainerRun run(json, transport);
        run.steps(5);
        states[static_cast<std::size_t>(transport.rank())] = run.trainer->state();
        const EvaluationResult result = run.trainer->test([&](const EvaluationResult&) {
          if (transport.rank() == 0) add_model_tensors(*run.config.model, "", written);
        });
        if (transport.rank() == 0) tested = result;
      });
      double worst = 0.0, moved = 0.0, apart = 0.0;
      SafetensorsFile trained = written;  // the mean of y
      const TrainConfig config = read_train_config(json, "test", {ranks, ranks});
      for (const Parameter* parameter : config.model->parameters()) {
        const std::vector<float> x = test::numbers_in<float>(written, parameter->name);
        std::vector<double> mean(x.size(), 0.0), expected(x.size(), 0.0);
        for (const SafetensorsFile& state : states) {
          const std::vector<float> own = test::numbers_in<float>(state, "model." + parameter->name);
          const std::vector<float> z_minus_y =
              test::numbers_in<float>(state, "optimizer.z_minus_y." + parameter->name);
          for (std::size_t i = 0; i < x.size(); ++i) {
            mean[i] += own[i] / static_cast<double>(ranks);
            expected[i] += (own[i] + (1 - 1 / 0.9) * z_minus_y[i]) / static_cast<double>(ranks);
          }
        }
        for (const SafetensorsFile& state : states) {
          const std::vector<float> own = test::numbers_in<float>(state, "model." + parameter->name);
          for (std::size_t i = 0; i < x.size(); ++i)
            apart += std::pow(own[i] - mean[i], 2) / static_cast<double>(ranks);
        }
        for (std::size_t i = 0; i < x.size(); ++i) {
          worst = std::max(worst, std::abs(x[i] - expected[i]));
          moved = std::max(moved, std::abs(x[i] - mean[i]));
        }
        const std::vector<float> y(mean.begin(), mean.end());
        std::memcpy(trained.tensors.at(parameter->name).bytes.data(), y.data(),
                    y.size() * sizeof(float));
      }
      CHECK(worst < 1e-6);
      CHECK(moved > 1e-4);
      CHECK(tested.consensus_distance == doctest::Approx(std::sqrt(apart)).epsilon(1e-4));  // of y
      const EvaluationResult again = test_of(written);
      for (const MetricValue& value : tested.values)
        CHECK(value_of(again, value.name) == doctest::Approx(value.value).epsilon(1e-6));
      CHECK(value_of(test_of(trained), "loss") !=
            doctest::Approx(value_of(tested, "loss")).epsilon(1e-6));
    }
  }
}

TEST_CASE("schedule_free: in bf16 the copies that products read are x, rounded, and then y again") {
  register_builtins();
  FakeWorld(2).run([&](Transport& transport) {
    TrainerRun run(schedule_free_config(R"({"precision": "bf16"})"), transport);
    run.steps(4);
    const SafetensorsFile before = run.trainer->state();
    run.trainer->test([&](const EvaluationResult&) { CHECK(run.low_is_current()); });
    CHECK(run.low_is_current());
    test::check_same_tensors(before, run.trainer->state());
  });
}

}  // namespace starling
