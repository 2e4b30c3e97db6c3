// What tests tell of scores, of classes and of samples one by one, and what --evaluate reads of a
// model file.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "apps/training/config/model_metadata.h"
#include "apps/training/config/plugins.h"
#include "apps/training/evaluate_model.h"
#include "apps/training/tasks/metric.h"
#include "core/backend.h"
#include "core/csv.h"
#include "core/operations/pointwise.h"
#include "kernels/open_backend.h"
#include "tests/apps/class_table.h"
#include "tests/apps/program.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace starling {
namespace {

using test::confusions_of;
using test::make_table;
using test::Program;

EvaluationResult confused() {
  EvaluationResult result;
  result.samples = 10;
  // Three outputs, two of them classes of the data; one row's outputs were no numbers.
  result.confusion = test::confusions_of(3, {3, 1, 0, 0, 2, 2, 1, 1, 0, 0, 0, 0});
  return result;
}

}  // namespace

TEST_CASE("metrics: balanced accuracy and macro F1 are scikit-learn's") {
  // balanced_accuracy_score and f1_score(average="macro") of y_true = 0×6, 1×4 and y_pred with the
  // counts below; class 2 neither occurs nor is predicted.
  std::vector<MetricValue> values =
      class_means(confusions_of(3, {5, 1, 0, 0, 2, 2, 0, 0, 0, 0, 0, 0}));
  REQUIRE(values.size() == 2);
  CHECK(values[0].name == "balanced_accuracy");
  CHECK(values[0].value == doctest::Approx((5.0 / 6.0 + 2.0 / 4.0) / 2.0).epsilon(1e-15));
  CHECK(values[1].name == "macro_f1");
  CHECK(values[1].value == doctest::Approx((10.0 / 13.0 + 4.0 / 7.0) / 2.0).epsilon(1e-15));
  // A class that is only predicted has an F1 of 0, and no recall; a row of no numbers is a miss.
  values = class_means(confusions_of(2, {3, 1, 0, 0, 0, 2}));
  CHECK(values[0].value == doctest::Approx((3.0 / 4.0 + 0.0) / 2.0));
  CHECK(values[1].value == doctest::Approx((6.0 / 7.0 + 0.0) / 2.0));
  values = class_means(confusions_of(2, {3, 1, 0, 0, 0, 0}));
  CHECK(values[0].value == doctest::Approx(3.0 / 4.0));
  CHECK(values[1].value == doctest::Approx((6.0 / 7.0 + 0.0) / 2.0));
}

TEST_CASE("metrics: a run's files and an evaluation have them, by the table of confusions") {
  const Program program;
  make_table(program);
  program.play(R"table(
0 2 | a run | test accuracy [0-9.]+ %, test balanced_accuracy [0-9.]+ %, test macro_f1 [0-9.]+ %, test loss | run.json --output run
0 2 | with an average | done | run.json --output average | ema={"decay": 0.5}
same run average
line run/metrics.jsonl "test_balanced_accuracy":
line average/metrics.jsonl "test_ema_macro_f1":
)table");
  CsvFile confusion = CsvFile::read("run/confusion.csv");
  double recalls = 0.0, f1 = 0.0;
  std::vector<std::vector<double>> counts;
  while (confusion.next()) {
    counts.emplace_back();
    for (std::size_t c = 1; c < confusion.names().size(); ++c)
      counts.back().push_back(confusion.number(c));
  }
  REQUIRE(counts.size() == 3);
  for (std::size_t c = 0; c < 3; ++c) {
    const double row = counts[c][0] + counts[c][1] + counts[c][2],
                 column = counts[0][c] + counts[1][c] + counts[2][c];
    recalls += counts[c][c] / row / 3.0;
    f1 += 2.0 * counts[c][c] / (row + column) / 3.0;
  }
  const nlohmann::json summary = program.summary("run");
  CHECK(summary["test_balanced_accuracy"].get<double>() == doctest::Approx(recalls));
  CHECK(summary["test_macro_f1"].get<double>() == doctest::Approx(f1));
  const test::Ended ended = program.train(2, "--evaluate run");
  CHECK(ended.status == 0);
  const nlohmann::json line = nlohmann::json::parse(ended.out.substr(ended.out.rfind('{')));
  CHECK(line["test_balanced_accuracy"].get<double>() == doctest::Approx(recalls));
}

TEST_CASE("metrics: of many classes the pairs that were seen are counted, to the same numbers") {
  const Program program;
  program.write("many.json", test::short_config(R"({"type": "mlp", "hidden": [8]})",
                                                R"("batch_size": 16, "steps": 2,)"));
  const std::string many =
      " | data.classes=1200 | model.num_classes=1200 | data.limit=1300 | "
      "data.test_limit=200 | data.image_size=8";
  program.play("0 2 | a run | done | many.json --output run" + many +
               "\n0 1 | its test | \"samples\":200 | --evaluate run --confusion one.csv\n"
               "0 3 | on ranks | \"samples\":200 | --evaluate run --confusion three.csv\n"
               "alike one.csv three.csv\nalike one.csv run/confusion.csv\n"
               "line one.csv ^true class,predicted class,samples$");
  CsvFile pairs = CsvFile::read("run/confusion.csv");
  std::map<std::string, double> samples, predicted, right;
  double all = 0.0, recalls = 0.0, f1 = 0.0;
  while (pairs.next()) {
    const std::string of(pairs.cell(0)), as(pairs.cell(1));
    const double count = pairs.number(2);
    all += count;
    samples[of] += count;
    predicted[as] += count;
    if (of == as) right[of] += count;
  }
  CHECK(all == 200.0);
  for (const auto& [name, count] : samples)
    recalls += right[name] / count / static_cast<double>(samples.size());
  std::set<std::string> known;
  for (const auto& [name, count] : samples) known.insert(name);
  for (const auto& [name, count] : predicted) known.insert(name);
  for (const std::string& name : known)
    f1 += 2.0 * right[name] / (samples[name] + predicted[name]) / static_cast<double>(known.size());
  const nlohmann::json summary = program.summary("run");
  CHECK(summary["test_balanced_accuracy"].get<double>() == doctest::Approx(recalls));
  CHECK(summary["test_macro_f1"].get<double>() == doctest::Approx(f1));
}

TEST_CASE("samples: each test sample with its prediction, the worst first") {
  const Program program;
  make_table(program);
  program.write("other.csv", "what,ever\n");
  program.play(R"table(
0 2 | a run | done | run.json --output run
0 1 | by one rank | "test_loss" | --evaluate run --samples one.csv --confusion confusion.csv
0 2 | by two | "test_loss" | --evaluate run --samples two.csv
copy one.csv old.csv
0 1 | once more, over the old one | "test_loss" | --evaluate run --samples one.csv
alike one.csv old.csv
2 1 | without a model | --samples requires --evaluate | run.json --samples x.csv
0 1 | numbers | done | run.json --output numbers | data.path=n.csv | data.target=number | task.type=regression
lacks x.csv
)table");
  const auto refused = [&](const char* command, const char* pattern) {
    const test::Ended ended = program.train(1, command);
    CHECK(ended.status == 2);
    CHECK_MESSAGE(test::matches(ended.err, pattern), ended.err);
  };
  refused("--evaluate run --samples other.csv",
          "--samples other.csv: the file is there already and holds no table of samples");
  CHECK(program.read("other.csv") == "what,ever\n");
  refused("--evaluate numbers --confusion x.csv",
          "--confusion x.csv: samples of this data set have no classes to confuse");
  refused("--evaluate run --confusion x.csv --samples x.csv",
          "--samples and --confusion are both x.csv");
  CsvFile table = CsvFile::read("t.csv"), samples = CsvFile::read("one.csv");
  std::vector<std::string> kinds{"", ""};  // by row of the file
  while (table.next()) {
    kinds.resize(static_cast<std::size_t>(table.row()) + 1);
    kinds.back() = table.cell(2);
  }
  std::map<std::string, double> of_two;  // whose batches may be rounded otherwise
  for (CsvFile two = CsvFile::read("two.csv"); two.next();) of_two[two.cell(0)] = two.number(4);
  double sum = 0.0, before = 1e9;
  int count = 0, right = 0;
  std::set<std::string> files;
  while (samples.next()) {
    const std::string& file = samples.cell(0);
    REQUIRE(file.starts_with("t.csv:"));
    files.insert(file);
    CHECK(kinds.at(std::stoul(file.substr(6))) == samples.cell(1));
    const double probability = samples.number(3), loss = samples.number(4);
    CHECK(loss <= before);
    before = loss;
    sum += loss;
    ++count;
    CHECK(of_two.at(file) == doctest::Approx(loss).epsilon(1e-3));
    if (samples.cell(1) == samples.cell(2)) {
      ++right;
      CHECK(std::exp(-loss) == doctest::Approx(probability).epsilon(1e-4));
    } else {
      CHECK(std::exp(-loss) <= probability);
    }
  }
  const nlohmann::json summary = program.summary("run");
  REQUIRE(count == 30);  // what val_fraction held out
  CHECK(files.size() == 30);
  CHECK(of_two.size() == 30);
  CHECK(sum / count == doctest::Approx(summary["test_loss"].get<double>()).epsilon(1e-4));
  CHECK(static_cast<double>(right) / count ==
        doctest::Approx(summary["test_accuracy"].get<double>()));
}

TEST_CASE("samples: pictures are called as they lie in their folder") {
  const Program program;
  const std::string golden = program.root() + "/tests/golden/pictures/";
  for (const std::string name : {"a", "b"}) {
    for (int i = 0; i < 8; ++i)
      program.play("copy " + golden + "rgb8.png pets/train/" + name + "/" + std::to_string(i) +
                   ".png");
  }
  program.write("run.json", R"({
    "model": {"type": "mlp", "hidden": [4]}, "threads": 1,
    "data": {"type": "image_folder", "path": "pets", "image_size": 8, "test_resize": 8, "test_crop": 8, "val_fraction": 0.25},
    "batch_size": 2, "steps": 4, "tensorboard": false, "loss": {"type": "bce_with_logits"},
    "checkpoint": {"every_epochs": 0}, "evaluate": {"every_epochs": 0}, "sync": {"transport": "mpi"}})");
  program.play(R"table(
0 2 | a run | done | run.json --output run
0 2 | what it held out | "test_loss" | --evaluate run --samples held.csv
)table");
  CsvFile samples = CsvFile::read("held.csv");
  int count = 0;
  for (; samples.next(); ++count) {
    const std::string& file = samples.cell(0);
    CHECK(file.starts_with("train/" + samples.cell(1) + "/"));
    CHECK(std::filesystem::is_regular_file("pets/" + file));
    CHECK(samples.number(3) < 1.0);
  }
  CHECK(count == 4);
}

TEST_CASE(
    "metrics: scores' cross entropy, the largest and the five largest, whatever ties, padding and "
    "ignored rows there are") {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr std::int64_t kClasses = 7, kPadding = 3;
  const auto backend = open_backend(DeviceType::kCpu, 1);
  // Of the second row three scores are equal, of the third the label's is none; the fourth is
  // ignored.
  const std::vector<std::vector<double>> rows{{0.5, -1.0, 2.0, 0.0, 1.0, -2.0, 0.25},
                                              {1.0, 3.0, 3.0, 0.0, 3.0, 2.0, 2.5},
                                              {0.0, kNan, 1.0, 2.0, 3.0, 4.0, 5.0},
                                              {9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0},
                                              {6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0}};
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (const std::int64_t padding : {std::int64_t{0}, kPadding}) {
      for (const std::int32_t third : {1, 6}) {
        const std::vector<std::int32_t> labels{2, 2, third, -100, 5};
        std::vector<double> numbers;
        double loss = 0.0, first = 0.0, fifth = 0.0;
        for (std::size_t r = 0; r < rows.size(); ++r) {
          numbers.insert(numbers.end(), rows[r].begin(), rows[r].end());
          numbers.insert(numbers.end(), static_cast<std::size_t>(padding),
                         -std::numeric_limits<double>::infinity());
          if (labels[r] < 0) continue;
          const auto label = static_cast<std::size_t>(labels[r]);
          double sum = 0.0, before = 0.0;
          for (std::size_t c = 0; c < rows[r].size(); ++c) {
            sum += std::exp(rows[r][c]);
            const bool comes_before =
                !(rows[r][c] <= rows[r][label]) || (rows[r][c] == rows[r][label] && c < label);
            before += c != label && comes_before ? 1.0 : 0.0;
          }
          loss += std::log(sum) - rows[r][label];
          first += before < 1.0 ? 1.0 : 0.0;
          fifth += before < 5.0 ? 1.0 : 0.0;
        }
        const Shape shape{5, kClasses + padding};
        const Tensor wide(*backend, shape, DType::kFloat64), scores(*backend, shape, dtype),
            targets(*backend, {5}, DType::kInt32), totals(*backend, {4}, DType::kFloat64);
        backend->copy_from_host(numbers.data(), wide);
        backend->copy_from_host(labels.data(), targets);
        backend->fill(totals, 1.0);  // they are added to
        backend->cast({.x = wide, .y = scores});
        add_scores(scores, kClasses, targets, true, true, totals);
        std::vector<double> found(4);
        backend->copy_to_host(totals, found.data());
        CHECK(std::isnan(found[0]));
        CHECK(std::isnan(loss));
        CHECK(found[1] == 1.0 + first);
        CHECK(found[2] == 1.0 + fifth);
        CHECK(found[3] == 5.0);
        // Without the row that has no number, the loss too.
        const auto without = [&](const Tensor& tensor, std::int64_t width) {
          return tensor.slice(3 * width, tensor.shape().rank() == 1 ? Shape{2} : Shape{2, width});
        };
        backend->fill(totals, 0.0);
        add_scores(without(scores, shape.back()), kClasses, without(targets, 1), true, false,
                   totals);
        backend->copy_to_host(totals, found.data());
        CHECK(found[0] ==
              doctest::Approx(std::log(std::exp(6.0) + std::exp(5.0) + std::exp(4.0) +
                                       std::exp(3.0) + std::exp(2.0) + std::exp(1.0) + 1.0) -
                              1.0)
                  .epsilon(1e-6));
        CHECK(found[2] == 0.0);
        CHECK(found[3] == 1.0);
      }
    }
  }
}

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
