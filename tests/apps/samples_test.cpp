// What tests tell of classes and of samples one by one.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "apps/training/tasks/metric.h"
#include "core/csv.h"
#include "tests/apps/class_table.h"
#include "tests/apps/program.h"

namespace starling {
namespace {

using test::confusions_of;
using test::make_table;
using test::Program;

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

}  // namespace starling
