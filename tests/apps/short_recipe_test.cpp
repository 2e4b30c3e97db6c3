// Keys that short recipes (airbench's) use: slow numbers, parameters that stop, parts of an epoch,
// several views of a test image.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/inference/test_views.h"
#include "apps/training/config/plugins.h"
#include "tests/apps/trainer_run.h"
#include "tests/fakes/transport/fake_transport.h"

namespace starling {
namespace {

using test::TrainerRun;
using test::value_of;

nlohmann::json short_config(const char* patch = "{}") {
  register_builtins();
  nlohmann::json config = nlohmann::json::parse(R"({
    "model": {"type": "sequential", "layers": [{"type": "conv2d", "out_channels": 4, "kernel_size": 3}, {"type": "batch_norm"}, {"type": "relu"},
      {"type": "flatten"}, {"type": "linear", "out_features": 4}]},
    "data": {"type": "synthetic", "image_size": 8, "classes": 4, "limit": 128, "test_limit": 30},
    "precision": "fp64", "batch_size": 4, "steps": 8, "optimizer": {"type": "sgd", "lr": 0.05, "momentum": 0.9},
    "sync": {"bucket_mb": 0.001, "topology": {"type": "ring"}}, "threads": 1, "log_every": 1, "tensorboard": false,
    "evaluate": {"every_epochs": 0}, "checkpoint": {"every_epochs": 0}})");
  config.merge_patch(nlohmann::json::parse(patch));
  return config;
}

/// All floating-point tensors of the model in a checkpoint, by name.
std::map<std::string, std::vector<double>> model_in(const SafetensorsFile& state) {
  std::map<std::string, std::vector<double>> result;
  for (const auto& [name, tensor] : state.tensors) {
    if (name.rfind("model.", 0) == 0 && is_floating(tensor.dtype))
      result[name.substr(6)] = test::numbers_in(state, name);
  }
  return result;
}

double farthest(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

}  // namespace

TEST_CASE("recipe/lookahead: each meeting is the plain formula on what a step without it gives") {
  const int total = 8;
  for (const char* algorithm : {"gossip", "allreduce"}) {
    for (const int ranks : {1, 2}) {
      CAPTURE(algorithm);
      CAPTURE(ranks);
      nlohmann::json plain = short_config(),
                     json =
                         short_config(R"({"lookahead": {"every": 3, "decay": 0.8, "power": 2}})");
      plain["sync"]["algorithm"] = json["sync"]["algorithm"] = algorithm;
      FakeWorld(ranks).run([&](Transport& transport) {
        TrainerRun run(json, transport);
        SafetensorsFile state = run.trainer->state();
        auto slow = model_in(state);
        for (int step = 1; step <= total; ++step) {
          std::map<std::string, std::vector<double>> expected;
          {  // the same step by a run without slow numbers, from where this one stands
            TrainerRun alone(plain, transport);
            if (step > 1) alone.trainer->resume(state, "test");
            alone.steps(1);
            expected = model_in(alone.trainer->state());
          }
          const double share = 0.8 * std::pow(step / static_cast<double>(total), 2.0);
          for (auto& [name, numbers] : expected) {
            std::vector<double>& own = slow.at(name);
            for (std::size_t i = 0; step % 3 == 0 && i < own.size(); ++i)
              own[i] = share * own[i] + (1.0 - share) * numbers[i];
            if (step % 3 == 0 || step == total) numbers = own;
          }
          run.steps(1);
          state = run.trainer->state();
          for (const auto& [name, numbers] : model_in(state)) {
            CAPTURE(step);
            CAPTURE(name);
            CHECK(farthest(numbers, expected.at(name)) < 1e-14);
            CHECK(farthest(test::numbers_in(state, "lookahead." + name), slow.at(name)) < 1e-14);
          }
        }
      });
    }
  }
}

TEST_CASE("recipe/lookahead: the share of slow numbers grows by the formula") {
  CHECK(LookaheadSettings{5, 0.5, 0.0}.share(1, 10) == 0.5);
  CHECK(LookaheadSettings{5, 0.8, 3.0}.share(5, 10) == doctest::Approx(0.1));
}

TEST_CASE("recipe/groups: parameters stay as they are from until_epoch on") {
  // 32 steps an epoch on one rank: 0.12 of it are 3.84, so four steps move the bias.
  const nlohmann::json free =
      short_config(R"({"optimizer": {"decay": "all", "weight_decay": 0.01}})");
  nlohmann::json json = free;
  json["optimizer"]["groups"] =
      nlohmann::json::parse(R"([{"match": "^0\\.bias$", "until_epoch": 0.12}])");
  FakeWorld(1).run([&](Transport& transport) {
    TrainerRun with(json, transport), without(free, transport);
    SafetensorsFile saved;
    std::vector<double> last;
    for (int step = 1; step <= 7; ++step) {
      CAPTURE(step);
      const auto bias_of = [](const SafetensorsFile& state) {
        return test::numbers_in(state, "model.0.bias");
      };
      const SafetensorsFile state = with.state_after(1), other = without.state_after(1);
      if (step <= 4) CHECK(model_in(state) == model_in(other));
      if (step > 1) CHECK((bias_of(state) == last) == (step > 4));
      if (step > 4) CHECK(bias_of(state) != bias_of(other));
      if (step == 6)
        CHECK(test::numbers_in(state, "model.0.weight") !=
              test::numbers_in(saved, "model.0.weight"));
      if (step == 3) saved = state;
      last = bias_of(state);
    }
  });
}

TEST_CASE("recipe/epochs: a run may end within an epoch") {
  const auto steps = [](const nlohmann::json& epochs) {
    nlohmann::json json = short_config(R"({"steps": null})");
    json["epochs"] = epochs;
    const TrainConfig config = read_train_config(json, "test.json", {1, 1});
    CHECK(config.resolved["epochs"] == epochs);
    return run_length(config, {1, 1}).total_steps;
  };
  CHECK(steps(2) == 64);
  CHECK(steps(0.3) == 10);  // 9.6
  CHECK(steps(1.1) == 36);  // 35.2
  CHECK(steps(0.5) == 16);
  CHECK(step_of_epoch(9.9, 48) == 476);
}

TEST_CASE("recipe/views: tests measure the mean of the outputs of what is shown") {
  struct Shift {
    int step;
    bool mirrored;
    double weight;
  };
  const std::map<std::string, std::vector<Shift>> expected{
      {"none", {{0, false, 1.0}}},
      {"mirror", {{0, false, 0.5}, {0, true, 0.5}}},
      {"mirror_translate",
       {{0, false, 0.25},
        {0, true, 0.25},
        {-1, false, 0.125},
        {-1, true, 0.125},
        {1, false, 0.125},
        {1, true, 0.125}}}};
  std::vector<double> losses;
  for (const std::string& name : test_view_names()) {
    for (const int ranks : {1, 2}) {
      CAPTURE(name);
      CAPTURE(ranks);
      nlohmann::json json = short_config();
      json["evaluate"]["tta"] = name;
      double found_loss = 0.0, found_accuracy = 0.0, loss = 0.0, accuracy = 0.0;
      FakeWorld(ranks).run([&](Transport& transport) {
        TrainerRun run(json, transport);
        run.steps(6);
        const auto measure = [&](const EvaluationResult& result) {
          if (transport.rank() != 0) return;
          found_loss = value_of(result, "loss");
          found_accuracy = value_of(result, "accuracy");
          // The mean model on every test image, one after another, with pixels put in their places
          // one by one.
          const TensorInfo& info = *run.config.data.info.find("image");
          const auto samples = static_cast<std::int64_t>(run.config.data.info.test_samples);
          for (std::int64_t i = 0; i < samples; ++i) {
            std::vector<std::uint8_t> bytes(static_cast<std::size_t>(info.shape.elements()));
            std::int32_t label = -1;
            std::vector<std::byte*> places;
            for (const TensorInfo& tensor : run.config.data.info.tensors) {
              places.push_back(tensor.name == "image" ? reinterpret_cast<std::byte*>(bytes.data())
                                                      : reinterpret_cast<std::byte*>(&label));
            }
            run.config.data.dataset->read(Dataset::Split::kTest, i, places);
            std::vector<double> logits(4, 0.0);
            for (const Shift& shift : expected.at(name)) {
              std::vector<double> shown(bytes.size());
              const auto inside = [](int at) { return at < 0 ? -at : at > 7 ? 14 - at : at; };
              for (int y = 0; y < 8; ++y) {
                for (int x = 0; x < 8; ++x) {
                  for (int c = 0; c < 3; ++c) {
                    const int from = (inside(y + shift.step) * 8 +
                                      inside((shift.mirrored ? 7 - x : x) + shift.step)) *
                                         3 +
                                     c;
                    const auto channel = static_cast<std::size_t>(c);
                    shown[static_cast<std::size_t>((y * 8 + x) * 3 + c)] =
                        (bytes[static_cast<std::size_t>(from)] / 255.0 -
                         info.pixels->mean[channel]) /
                        info.pixels->std[channel];
                  }
                }
              }
              const Tensor image(*run.backend, {1, 8, 8, 3}, DType::kFloat64);
              run.backend->copy_from_host(shown.data(), image);
              Pass pass{*run.backend};
              const Variable out = run.config.model->forward(Variable(image), pass);
              for (std::size_t k = 0; k < 4; ++k)
                logits[k] += shift.weight * out.value().data<double>()[k];
            }
            double sum = 0.0;
            for (const double logit : logits) sum += std::exp(logit);
            loss += (std::log(sum) - logits[static_cast<std::size_t>(label)]) /
                    static_cast<double>(samples);
            accuracy += (std::max_element(logits.begin(), logits.end()) - logits.begin() == label) /
                        static_cast<double>(samples);
          }
        };
        run.trainer->test(measure);
      });
      CHECK(found_loss == doctest::Approx(loss).epsilon(1e-9));
      CHECK(found_accuracy == doctest::Approx(accuracy).epsilon(1e-12));
      if (ranks == 1) losses.push_back(found_loss);
    }
  }
  CHECK(losses[0] != losses[1]);
  CHECK(losses[1] != losses[2]);
}

}  // namespace starling
