// Rows of tables: what they become, what is refused, and runs on them. The reader of CSV files by
// itself is tests/core/csv_test.cpp's.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "apps/data/dataset.h"
#include "apps/inference/inference.h"
#include "core/csv.h"
#include "core/random.h"
#include "core/safetensors.h"
#include "tests/apps/program.h"
#include "tests/apps/trainer_run.h"
#include "tests/support/errors.h"

namespace starling {
namespace {

using test::contains;
using test::Program;

std::unique_ptr<Dataset> csv_of(const nlohmann::json& keys, const std::string& task = "",
                                std::uint64_t seed = 1) {
  register_builtin_datasets();
  ConfigSection section(keys, "test.json");
  auto dataset = datasets().make("csv", "data.type", section, seed);
  section.finish();
  dataset->use_task(task);
  return dataset;
}

/// A sample's features, and its target or label behind them.
std::vector<double> row_of(const Dataset& dataset, Dataset::Split split, std::int64_t index) {
  const auto width = static_cast<std::size_t>(dataset.info().tensors[0].shape.elements());
  std::vector<float> features(width);
  float target = 0.0f;
  std::int32_t label = 0;
  const bool classes = dataset.info().classes > 0;
  std::byte* out[] = {
      reinterpret_cast<std::byte*>(features.data()),
      classes ? reinterpret_cast<std::byte*>(&label) : reinterpret_cast<std::byte*>(&target)};
  dataset.read(split, index, out);
  std::vector<double> result(features.begin(), features.end());
  result.push_back(classes ? label : static_cast<double>(target));
  return result;
}

/// 3 a - 2 b + 100, a little noise on it, and a column that says nothing.
std::string line_table(int rows) {
  std::string text = "a,same,price,b\n";
  for (int r = 0; r < rows; ++r) {
    const Philox4x32 bits =
        random_bits(5, RandomStream::kSynthetic, 0, static_cast<std::uint64_t>(r));
    const double a = 50.0 + 20.0 * uniform_double(bits.v[0], 0), b = uniform_double(bits.v[1], 0),
                 noise = uniform_double(bits.v[2], 0) - 0.5;
    text += fmt::format("{},7,{},{}\n", a, 3.0 * a - 2.0 * b + 100.0 + noise, b);
  }
  return text;
}

std::string run_config(const std::string& keys) {
  return R"({"data": {"type": "csv", "path": "t.csv", "target": "price", "val_fraction": 0.2},
    "model": {"type": "sequential", "layers": [{"type": "linear", "out_features": 1}]},
    "batch_size": 16, "epochs": 2, "optimizer": {"type": "sgd", "lr": 0.1}, "threads": 1, "log_every": 1, "tensorboard": false,
    "evaluate": {"every_epochs": 0}, "checkpoint": {"every_epochs": 0}, "sync": {"transport": "mpi"})" +
         keys + "}";
}

/// The weights that make the squared differences of rows {x..., 1, y} least: normal equations by
/// Gaussian elimination.
std::vector<double> least_squares(const std::vector<std::vector<double>>& rows) {
  const std::size_t n = rows[0].size() - 1;
  std::vector<std::vector<double>> a(n, std::vector<double>(n + 1, 0.0));
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t k = 0; k <= n; ++k) a[i][k] += row[i] * row[k];
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t r = 0; r < n; ++r) {
      if (r == i) continue;
      const double factor = a[r][i] / a[i][i];
      for (std::size_t k = i; k <= n; ++k) a[r][k] -= factor * a[i][k];
    }
  }
  std::vector<double> weights;
  for (std::size_t i = 0; i < n; ++i) weights.push_back(a[i][n] / a[i][i]);
  return weights;
}

}  // namespace

TEST_CASE(
    "csv: what is wrong with a table is told before there is a folder, on all ranks at once") {
  const Program program;
  program.write("run.json", run_config(""));
  program.write("t.csv", "a,price\n1,2\n2,3\n");
  program.write("empty.csv", "");
  program.write("names.csv", "a,price\n");
  program.write("word.csv", "a,price\n1,2\n\ncat,3\n");
  program.write("target.csv", "a,price\n1,2\n1,cheap\n");
  program.write("large.csv", "a,price\n1,2\n1,1e39\n");
  program.write("short.csv", "a,price\n1,2\n1\n");
  program.write("twice.csv", "a,a,price\n1,2,3\n");
  program.write("alone.csv", "price\n1\n2\n");
  program.write("latin.csv", "a,price\n1,\xe9\n");
  program.write("far.csv", "a,price\n-1e308,1\n1e308,2\n9e307,3\n-9e307,4\n");
  program.write("equal.csv", "a,price\n1,2\n1,2\n1,2\n");
  program.play(R"table(
2 1 | equal rows | equal\.csv: all rows are for tests | data.path=equal.csv | data.val_fraction=0.5 | batch_size=1
2 1 | no file | data\] data\.path: cannot open none\.csv: No such file | data.path=none.csv
2 2 | no file, on two ranks | cannot open none\.csv | data.path=none.csv
2 1 | no path | data\.path | data={"type": "csv", "target": "price"}
2 1 | no target key | data\.target | data={"type": "csv", "path": "t.csv"}
2 1 | no file, and no target key | cannot open t\.cvs: No such file or directory; did you mean 't\.csv' | data={"type": "csv", "path": "t.cvs"}
2 1 | no such column | t\.csv: has no column 'cost' \(data\.target\); its columns: 'a', 'price' | data.target=cost
2 1 | empty | empty\.csv: the table is empty | data.path=empty.csv
2 1 | names alone | names\.csv: has no rows below the columns' names | data.path=names.csv
2 1 | a word | word\.csv: row 4, column 'a': is 'cat'; needed: a number | data.path=word.csv
2 2 | a word, on two ranks | word\.csv: row 4, column 'a': is 'cat' | data.path=word.csv
2 1 | a target that is a word | target\.csv: row 3, column 'price': is 'cheap'; needed: a number.*"classification" | data.path=target.csv
2 1 | a target that fp32 has not | large\.csv: row 3, column 'price': is '1e39'; needed: a number that fp32 can hold | data.path=large.csv
2 1 | a cell too few | short\.csv: row 3 has 1 cell; needed: 2 | data.path=short.csv
2 1 | a name twice | twice\.csv: columns 1 and 2 have the same name, 'a' | data.path=twice.csv
2 1 | no column but the target | alone\.csv: has no column but the target | data.path=alone.csv
2 1 | not UTF-8 | latin\.csv: line 2 is not UTF-8 | data.path=latin.csv
2 1 | no whole test row | csv: data\.val_fraction 0\.2 of all rows of t\.csv is no whole row; use a larger one | batch_size=1
2 1 | numbers too large | far\.csv: column 'a': its numbers are too large | data.path=far.csv | batch_size=1 | data.val_fraction=0.5
2 1 | another key | data\.limit | data.limit=3
2 1 | an augmentation | data\.augment\.flip: is for images | data.augment.flip=true | data.val_fraction=0.5
2 1 | a partition by classes that are not | data\.partition\.type: is dirichlet, but the samples of csv have no class | data.partition.type=dirichlet | data.val_fraction=0.5
2 1 | a task of images | needs samples with a tensor 'label'|task\.type | task.type=none | data.val_fraction=0.5
2 1 | a metric of classes | task\.metrics: classification does not fit the task regression, whose targets are fp32 of shape 1 for outputs of shape 1; needed: a class number for each row | task.metrics=["loss","classification"] | data.val_fraction=0.5
2 1 | too many outputs | num_classes: the model's outputs are 2, the targets 1; needed: the same | model={"type": "mlp", "num_classes": 2} | data.val_fraction=0.5
lacks out
)table",
               "run.json --output out");
}

TEST_CASE("csv: a regression is the least squares' line, on one rank and on several") {
  const Program program;
  program.write("t.csv", line_table(200));
  program.write("run.json", run_config(R"(, "precision": "fp64")"));
  const auto table =
      csv_of({{"path", "t.csv"}, {"target", "price"}, {"val_fraction", 0.2}}, "regression");
  table->open();
  REQUIRE(table->info().train_samples == 160);
  std::vector<std::vector<double>> rows;
  for (std::int64_t i = 0; i < 160; ++i) {
    const std::vector<double> sample = row_of(*table, Dataset::Split::kTrain, i);
    rows.push_back({sample[0], sample[2], 1.0, sample[3]});  // without the column of zeros
  }
  const std::vector<double> best = least_squares(rows);
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    const std::string out = fmt::format("out{}", ranks);
    // a step takes all training rows, so that its gradient is theirs
    program.check("a run", ranks, 0, "done", "run.json --output " + out,
                  {fmt::format("batch_size={}", 160 / ranks), "epochs=400", "log_every=400",
                   "sync.algorithm=allreduce", "sync.topology={\"type\": \"complete\"}"});
    const SafetensorsFile model = read_safetensors(out + "/model.safetensors");
    const std::vector<double> weight = test::numbers_in(model, "0.weight"),
                              bias = test::numbers_in(model, "0.bias");
    CHECK(weight[0] == doctest::Approx(best[0]).epsilon(1e-9));
    CHECK(weight[2] == doctest::Approx(best[1]).epsilon(1e-9));
    CHECK(bias[0] == doctest::Approx(best[2]).epsilon(1e-9));
    double squares = 0.0, sizes = 0.0, sum = 0.0, spread = 0.0;
    std::vector<double> targets;
    for (std::int64_t i = 0; i < 40; ++i) {
      const std::vector<double> sample = row_of(*table, Dataset::Split::kTest, i);
      const double error = best[0] * sample[0] + best[1] * sample[2] + best[2] - sample[3];
      squares += error * error;
      sizes += std::abs(error);
      targets.push_back(sample[3]);
      sum += sample[3];
    }
    for (const double target : targets) spread += (target - sum / 40.0) * (target - sum / 40.0);
    const nlohmann::json summary = program.summary(out);
    CHECK(summary["test_mse"].get<double>() == doctest::Approx(squares / 40.0).epsilon(1e-8));
    CHECK(summary["test_loss"].get<double>() == doctest::Approx(squares / 40.0).epsilon(1e-8));
    CHECK(summary["test_mae"].get<double>() == doctest::Approx(sizes / 40.0).epsilon(1e-8));
    CHECK(summary["test_r2"].get<double>() ==
          doctest::Approx(1.0 - squares / spread).epsilon(1e-10));
    CHECK(summary["samples_per_second"] == summary["images_per_second"]);
    CHECK_FALSE(summary.contains("bad_pictures"));
  }
  // The file alone is enough: rows of another table, whose columns stand in another order.
  const auto model = load_model("out1", {.threads = 1, .precision = "fp64"});
  REQUIRE(model->columns() != nullptr);
  CHECK(model->columns()->names == std::vector<std::string>{"a", "same", "b"});
  CHECK(model->columns()->target == "price");
  program.write("new.csv", "b,same,note,a\n0.25,7,x,60\n\n1,7,y,55\n");
  const TableRows read = model->read_table("new.csv");
  CHECK(read.rows == std::vector<std::int64_t>{2, 4});
  const std::vector<float> predicted = model->logits(std::span<const float>(read.numbers));
  const TableColumns& columns = *model->columns();
  const auto expected = [&](double a, double b) {
    return best[0] * (a - columns.mean[0]) / columns.deviation[0] +
           best[1] * (b - columns.mean[2]) / columns.deviation[2] + best[2];
  };
  REQUIRE(predicted.size() == 2);
  CHECK(predicted[0] == doctest::Approx(expected(60.0, 0.25)).epsilon(1e-6));
  CHECK(predicted[1] == doctest::Approx(expected(55.0, 1.0)).epsilon(1e-6));
  program.write("lacks.csv", "b,a\n0.25,60\n");
  CHECK(contains(
      test::error_text(ExitCode::kUsage, [&] { (void)model->read_table("lacks.csv"); }),
      "lacks.csv: has no column 'same' (which the model was trained with); its columns: 'b', 'a'"));
}

TEST_CASE("csv: a run goes on with no other rows, and its model is tested by its own") {
  const Program program;
  std::string numbers = "a,price,b,kind\n";
  for (int r = 0; r < 100; ++r)
    numbers += fmt::format("{},{},{},{}\n", r, 3 * r + r % 7, r % 7, r % 3);
  program.write("t.csv", numbers);
  program.write("run.json", run_config(R"(, "steps": 12)"));
  std::string config = program.read("run.json");
  config.erase(config.find("\"epochs\": 2, "), 13);
  program.write("run.json", config);
  program.play(R"table(
0 2 | whole | test r2.*test mae.*test mse | run.json --output whole
0 2 | a part | done | run.json --output part | steps=5
copy part other
0 2 | counted | rows: 80 for training \+ 20 for tests, 3 columns and 'price' | run.json --dry-run
0 1 | tested | rows of t\.csv that the model's run held out$ | --evaluate whole
0 1 | the best by r2 | done | run.json --output best | task.metrics=["r2"] | checkpoint={"best": true, "every_steps": 0} | evaluate={"every_steps": 1}
0 1 | in bf16 where it is fast, balanced | done | run.json --output low | precision=auto | data.sampler={"type": "load_balanced", "complexity": "measured"}
0 2 | classes, each rank its own | test accuracy | run.json --output kinds | data.target=kind | task.type=classification | model={"type": "mlp", "hidden": [8]} | data.partition={"type": "dirichlet", "alpha": 0.5} | batch_size=8
0 1 | and their table | ^2 +[0-9]+ | --evaluate kinds --confusion kinds.csv
)table");
  double most = -1e300;
  for (const nlohmann::json& line : program.metrics("best", "test_r2"))
    most = std::max(most, line["test_r2"].get<double>());
  CHECK(program.summary("best")["best"]["test_r2"] == most);
  CHECK(load_model("kinds")->classes() == std::vector<std::string>{"0", "1", "2"});
  const auto evaluated = [&](const char* name) {
    return last_line(program.check(name, 1, 0, "test_r2", "--evaluate whole"));
  };
  const nlohmann::json tested = evaluated("tested");
  CHECK(tested["test_r2"].get<double>() ==
        doctest::Approx(program.summary("whole")["test_r2"].get<double>()).epsilon(1e-6));
  CHECK(tested["samples"] == 20);
  // More rows of other sizes: what was trained on stays as it was normalised.
  program.write("t.csv", numbers + "1000,1,1,1\n");
  program.check("other rows", 2, 2, "the data set in t.csv has 8[01] training samples|2[01] test",
                "run.json --output other --resume latest");
  const nlohmann::json again = evaluated("tested again");
  if (again["samples"] == 20) CHECK(again["test_mse"] == tested["test_mse"]);
  program.write("t.csv", "x" + numbers);
  program.check(
      "other columns", 1, 2,
      R"(t\.csv: has no column 'a' \(which the model of whole/model\.safetensors was trained with\))",
      "--evaluate whole");
}

}  // namespace starling
