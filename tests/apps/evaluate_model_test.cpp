// What --evaluate tells, and what a model file says of itself.
#include "apps/training/evaluate_model.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/training/config/model_metadata.h"
#include "apps/training/config/plugins.h"
#include "tests/apps/class_table.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace starling {
namespace {

EvaluationResult confused() {
  EvaluationResult result;
  result.samples = 10;
  // Three outputs, two of them classes of the data; one row's outputs were no numbers.
  result.confusion = test::confusions_of(3, {3, 1, 0, 0, 2, 2, 1, 1, 0, 0, 0, 0});
  return result;
}

}  // namespace

TEST_CASE("evaluate_model: a line for each class, and a table of which are taken for which") {
  CHECK(class_table(confused(), {"cat", "a long name"}) ==
        "class        samples  accuracy\n"
        "cat                4   75.00 %\n"
        "a long name        6   33.33 %\n");
  CHECK(confusion_csv(confused(), {"cat", "dog, \"big\""}) ==
        "true class,cat,\"dog, \"\"big\"\"\",2,no number\n"
        "cat,3,1,0,0\n"
        "\"dog, \"\"big\"\"\",2,2,1,1\n");
  EvaluationResult clean = confused();
  clean.confusion.counts.erase({1, 3});
  CHECK(confusion_csv(clean, {"0", "1", "2"}) == "true class,0,1,2\n0,3,1,0\n1,2,2,1\n2,0,0,0\n");
  CHECK(test::contains(class_table(clean, {"0", "1", "2"}), "2            0         -\n"));
}

TEST_CASE(
    "evaluate_model: a model file says its config, its classes' names and how bytes become "
    "numbers") {
  register_builtins();
  const auto config_of = [](const char* text) {
    return read_train_config(nlohmann::json::parse(text), "test", {1, 1});
  };
  const TrainConfig config = config_of(
      R"({"model": {"type": "resnet20"}, "data": {"type": "cifar10", "augment": {"flip": true}},
    "batch_size": 32, "steps": 5, "optimizer": {"type": "adamw"}, "sync": {"topology": {"type": "ring"}}, "seed": 5})");
  SafetensorsFile file;
  describe_model(config, 1, file);
  CHECK(nlohmann::json::parse(file.metadata.at("starling.config")) == config.resolved);
  const auto classes = nlohmann::json::parse(file.metadata.at("starling.classes"));
  CHECK(classes.size() == 10);
  CHECK(classes[0] == "airplane");
  CHECK(classes[9] == "truck");
  CHECK(nlohmann::json::parse(file.metadata.at("starling.normalize")) ==
        nlohmann::json::parse(
            R"({"mean": [0.4914, 0.4822, 0.4465], "std": [0.247, 0.2435, 0.2616]})"));
  const nlohmann::json again = config_of_model(file, "m.safetensors");
  CHECK_FALSE(again.contains("optimizer"));
  CHECK_FALSE(again["data"].contains("augment"));
  CHECK_NOTHROW(read_train_config(again, "m.safetensors", {3, 3}));
  CHECK(read_train_config(again, "m.safetensors", {3, 3}).length.batch_size == 32);
  // Classes without names are numbers.
  SafetensorsFile plain;
  describe_model(
      config_of(
          R"({"model": {"type": "mlp", "hidden": [4]}, "data": {"type": "synthetic", "classes": 3}, "steps": 1})"),
      1, plain);
  CHECK(plain.metadata.at("starling.classes") == R"(["0","1","2"])");
  const TrainConfig hundred =
      config_of(R"({"model": {"type": "resnet20"}, "data": {"type": "cifar100"}, "steps": 1})");
  REQUIRE(hundred.data.info.class_names.size() == 100);
  CHECK(std::is_sorted(hundred.data.info.class_names.begin(), hundred.data.info.class_names.end()));
  CHECK(
      config_of(
          R"({"model": {"type": "mlp", "hidden": [4]}, "data": {"type": "fashion_mnist"}, "steps": 1})")
          .data.info.class_names[9] == "Ankle boot");
}

TEST_CASE(
    "evaluate_model: a file of another program, and one whose config is damaged, are named in a "
    "line") {
  SafetensorsFile file;
  const auto text = [&] {
    return test::error_of(ExitCode::kUsage, [&] { config_of_model(file, "m.safetensors"); });
  };
  CHECK(test::contains(text(), "m.safetensors does not say by what config it was trained"));
  CHECK(test::contains(text(), "CONFIG.json"));
  file.metadata["starling.config"] = "{";
  CHECK(test::contains(text(), "m.safetensors, starling.config"));
  file.metadata["starling.config"] = "{\"model\": {}}";
  CHECK(test::contains(text(), "holds no config of a model and its data"));
  // A data file does not say what code is to be run.
  file.metadata["starling.config"] =
      R"({"model": {"type": "mine"}, "data": {"type": "synthetic"}, "plugins": ["./libmine.so"]})";
  CHECK(test::contains(
      text(), R"(m.safetensors was trained with the plug-ins ["./libmine.so"]; give its config)"));
}

}  // namespace starling
