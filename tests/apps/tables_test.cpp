// Tables: what rows become, what is refused, runs on them; and tables as users have them: saved by
// other programs, with categories, empty cells and test sets of their own, and models that go on
// with other tables. The reader of CSV files by itself is tests/core/csv_test.cpp's.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "apps/data/dataset.h"
#include "apps/inference/description.h"
#include "apps/inference/inference.h"
#include "core/checksum.h"
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
using Rows = std::vector<std::vector<double>>;

std::unique_ptr<Dataset> table_of(const nlohmann::json& keys, const std::string& task = "") {
  register_builtin_datasets();
  ConfigSection section(keys, "test.json");
  auto dataset = datasets().make("csv", "data.type", section, 1);
  section.finish();
  dataset->use_task(task);
  return dataset;
}

/// All samples of a split: inputs, and the target or label behind them.
Rows samples_of(const Dataset& dataset, Dataset::Split split) {
  const DatasetInfo info = dataset.info();
  const auto width = static_cast<std::size_t>(info.tensors[0].shape.elements());
  Rows rows;
  for (std::int64_t i = 0;
       i < (split == Dataset::Split::kTrain ? info.train_samples : info.test_samples); ++i) {
    std::vector<float> features(width);
    float target = 0.0F;
    std::int32_t label = 0;
    std::byte* out[] = {reinterpret_cast<std::byte*>(features.data()),
                        info.classes > 0 ? reinterpret_cast<std::byte*>(&label)
                                         : reinterpret_cast<std::byte*>(&target)};
    dataset.read(split, i, out);
    rows.emplace_back(features.begin(), features.end());
    rows.back().push_back(info.classes > 0 ? label : static_cast<double>(target));
  }
  return rows;
}

/// The inputs of the training rows without tests, normalised by hand where a column says so.
Rows inputs_of(const test::Folder& folder, const std::string& text, nlohmann::json keys = {}) {
  keys.update(nlohmann::json{
      {"path", folder.write("t.csv", text)}, {"target", "y"}, {"val_fraction", 0.0}});
  const auto dataset = table_of(keys);
  dataset->open();
  Rows rows = samples_of(*dataset, Dataset::Split::kTrain);
  for (auto& row : rows) row.pop_back();
  return rows;
}

std::string refusal_of(const test::Folder& folder, const std::string& text,
                       nlohmann::json keys = {}, const std::string& task = "") {
  keys.update(nlohmann::json{{"path", folder.write("t.csv", text)}, {"target", "y"}});
  return test::error_text(ExitCode::kUsage, [&] { table_of(keys, task)->open(); });
}

double draw(std::uint64_t row, int place) {
  return uniform_double(random_bits(9, RandomStream::kSynthetic, 0, row).v[place], 0);
}

std::string line_table(int from, int to, double shift = 0.0, bool reordered = false) {
  std::string text = reordered ? "b,y,a\n" : "a,b,y\n";
  for (int r = from; r < to; ++r) {
    const double a = 10.0 * draw(static_cast<std::uint64_t>(r), 0) + shift,
                 b = draw(static_cast<std::uint64_t>(r), 1) - 0.5, y = 3.0 * a - 2.0 * b + 5.0;
    text += reordered ? fmt::format("{},{},{}\n", b, y, a) : fmt::format("{},{},{}\n", a, b, y);
  }
  return text;
}

std::string config_of(const std::string& data, const std::string& keys = "") {
  return R"({"data": {"type": "csv", )" + data +
         R"(}, "model": {"type": "mlp", "hidden": [8]}, "optimizer": {"type": "adam", "lr": 0.03},
    "batch_size": 10, "epochs": 20, "threads": 1, "tensorboard": false, "evaluate": {"every_epochs": 0},
    "checkpoint": {"every_epochs": 0}, "sync": {"transport": "mpi"})" +
         keys + "}";
}

nlohmann::json tested(const Program& program, const std::string& command,
                      const Program::Arguments& settings = {}) {
  return test::last_line(program.check("tested", 1, 0, "samples", command, settings));
}

/// 3 a - 2 b + 100, a little noise on it, and a column that says nothing.
std::string price_table(int rows) {
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
  program.write("t.csv", price_table(200));
  program.write("run.json", run_config(R"(, "precision": "fp64")"));
  const auto table =
      table_of({{"path", "t.csv"}, {"target", "price"}, {"val_fraction", 0.2}}, "regression");
  table->open();
  REQUIRE(table->info().train_samples == 160);
  std::vector<std::vector<double>> rows;
  for (const auto& sample : samples_of(*table, Dataset::Split::kTrain))
    rows.push_back({sample[0], sample[2], 1.0, sample[3]});  // without the column of zeros
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
    for (const auto& sample : samples_of(*table, Dataset::Split::kTest)) {
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

TEST_CASE("tables: columns of texts are categories, booleans are numbers, texts that are neither") {
  const test::Folder folder;
  // color: blue, red; ok: yes is 1; z: numbers that are names; same: one category alone
  const Rows rows = inputs_of(folder,
                              "color,ok,z,same,y\nred,Yes,07,x,1\n blue,no,7.0,x,2\nred,no,8,x,3\n"
                              "\"blue \",YES,8,x,4\n",
                              {{"categories", {"z"}}});
  CHECK(rows ==
        Rows{{0, 1, 1, 1, 0, 0}, {1, 0, -1, 1, 0, 0}, {0, 1, -1, 0, 1, 0}, {1, 0, 1, 0, 1, 0}});
  CHECK(inputs_of(folder, "a,b,y\n1,2,3\n3,5,4\n", {{"ignore", {"b"}}}) == Rows{{-1}, {1}});
  for (const char* cell : {"1,234", "0x1p3", "inf", "12:30", "5%"}) {
    CAPTURE(cell);
    CHECK(contains(refusal_of(folder, fmt::format("a,y\n\"{0}\",1\n\"{0}\",2\n", cell)),
                   fmt::format("row 2, column 'a': is '{}'; needed: a number", cell)));
  }
  CHECK(contains(refusal_of(folder, "a,y\n1,1\ncat,2\n"), "row 3, column 'a': is 'cat'"));
  std::string many = "a,y\n";
  for (int r = 0; r < 6; ++r) many += fmt::format("name{},{}\n", r, r);
  CHECK(contains(refusal_of(folder, many, {{"max_categories", 5}}),
                 "column 'a' has 6 different texts in 6 rows"));
  CHECK(inputs_of(folder, many, {{"max_categories", 6}})[0].size() == 6);
  CHECK(contains(refusal_of(folder, "a,y\n1,1\n", {{"ignore", {"y"}}}), "names the target, 'y'"));
  CHECK(contains(refusal_of(folder, "a,y\n1,1\n", {{"categories", {"A"}}}),
                 "has no column 'A' (data.categories)"));
  CHECK(contains(refusal_of(folder, ",y\n1,1\n"), "no column but the target that has a name"));
  CHECK(contains(refusal_of(folder, "a,Y\n1,1\n"), "did you mean 'Y'?"));
}

TEST_CASE("tables: empty cells are an error, a mean, or also an input of their own") {
  const test::Folder folder;
  const std::string text = "a,kind,y\n1,x,1\n,w,2\n3,NA,3\nnan,x,4\n";
  CHECK(contains(refusal_of(folder, text),
                 "row 3, column 'a': is empty; needed: a number; "
                 "\"missing\": \"mean\" or \"column\""));
  CHECK(contains(refusal_of(folder, "kind,y\nx,1\nw,2\nn/a,3\n"),
                 "row 4, column 'kind': is 'n/a'; needed: a category"));
  CHECK(inputs_of(folder, text, {{"missing", "mean"}}) ==
        Rows{{-1, 0, 1}, {0, 1, 0}, {1, 0, 0}, {0, 0, 1}});
  CHECK(inputs_of(folder, text, {{"missing", "column"}}) ==
        Rows{{-1, 0, 0, 1, 0}, {0, 1, 1, 0, 0}, {1, 0, 0, 0, 1}, {0, 1, 0, 1, 0}});
  CHECK(contains(refusal_of(folder, "a,y\n,1\n,2\n", {{"missing", "mean"}, {"val_fraction", 0.0}}),
                 "column 'a' has no number in a training row"));
  // A target is never empty, nor a class
  for (const char* cell : {"", " ", "NA", "null", "NaN"}) {
    CAPTURE(cell);
    const std::string labels = fmt::format("a,y\n1,cat\n2,dog\n3,{}\n", cell);
    CHECK(contains(refusal_of(folder, labels, {{"missing", "mean"}}, "classification"),
                   "row 4, column 'y': is "));
    CHECK(contains(refusal_of(folder, fmt::format("a,y\n1,2\n2,{}\n", cell), {{"missing", "mean"}}),
                   "row 3, column 'y': is "));
  }
}

TEST_CASE("tables: spellings of one class are one, under the first spelling") {
  const test::Folder folder;
  const auto classes_of = [&](const std::string& text) {
    return table_of({{"path", folder.write("t.csv", text)}, {"target", "y"}}, "classification")
        ->info()
        .class_names;
  };
  std::string words = "a,y\n", numbers = words, flags = words;
  for (int r = 0; r < 40; ++r) {
    words += fmt::format("{},{}\n", r, r % 2 == 0 ? "dog" : r % 4 == 1 ? "\" dog \"" : "cat");
    numbers += fmt::format("{},{}\n", r, r % 2 == 0 ? "1" : r % 4 == 1 ? "1.0" : "2");
    flags += fmt::format("{},{}\n", r, r % 2 == 0 ? "True" : r % 4 == 1 ? "TRUE" : "no");
  }
  CHECK(classes_of(words) == std::vector<std::string>{"cat", "dog"});
  CHECK(classes_of(numbers) == std::vector<std::string>{"1", "2"});
  CHECK(classes_of(flags) == std::vector<std::string>{"TRUE", "no"});
  // Beyond 2^53 digits tell names apart
  std::string ids = "a,y\n";
  for (int r = 0; r < 40; ++r)
    ids += fmt::format("1234567890123456{},{}\n", 70 + r % 3, 80 + r % 2);
  CHECK(classes_of(ids).size() == 2);
  ids = "a,y\n";
  for (int r = 0; r < 40; ++r)
    ids += fmt::format("1234567890123456{},1234567890123456{}\n", 70 + r % 3, 80 + r % 2);
  CHECK(classes_of(ids) == std::vector<std::string>{"123456789012345680", "123456789012345681"});
  const auto told = [&](const nlohmann::json& categories) {
    return table_of(
               {{"path", folder.write("t.csv", ids)}, {"target", "y"}, {"categories", categories}},
               "classification")
        ->info()
        .contents;
  };
  CHECK(contains(told({"a"}), "'a' (inputs 0 to 2)"));
  CHECK(contains(told(nlohmann::json::array()), "column 'a': integers from 2^53 on are rounded"));
  ids = "a,y\n";
  for (int r = 0; r < 40; ++r) ids += fmt::format("{},{}\n", r % 3 == 0 ? "1.1" : "1.10", r % 2);
  CHECK(
      contains(told({"a"}), "column 'a': '1.1' is written as '1.10', too: they are one category"));
  // Outputs beyond the classes are called otherwise than any of them
  CHECK(name_of_output({"2", "1"}, 1) == "1");
  CHECK(name_of_output({"2", "1"}, 2) == "output 2");
  CHECK(name_of_output({"cat"}, 2) == "2");
}

TEST_CASE("tables: a test set of its own is all that is tested, and of --test no other is needed") {
  const Program program;
  program.write("t.csv", line_table(0, 100));
  program.write("v.csv", line_table(100, 130, 0.0, true));
  program.write("new.csv", line_table(200, 500));
  program.write("some.csv", line_table(98, 108));
  program.write("names.csv", "a,b,y\n");
  std::string one = "a,y\n", rare = one;
  for (int r = 0; r < 40; ++r) {
    one += fmt::format("{},x\n", r);
    rare += fmt::format("{},{}\n", r, r < 38 ? "common" : "rare");
  }
  program.write("one.csv", one);
  program.write("rare.csv", rare);
  program.write("lacks.csv", "a,b\n1,2\n");
  program.write("run.json", config_of(R"("path": "t.csv", "val_path": "v.csv", "target": "y")"));
  program.play(R"table(
0 1 | one class | ^warning: data: one\.csv: column 'y' has one class, 'x': the model will say it of everything$ | run.json --output one | data={"type":"csv","path":"one.csv","target":"y"} | task.type=classification
0 1 | a class without a test | ^warning: data: rare\.csv: classes without a test row: 'rare'$ | run.json --output rare | data={"type":"csv","path":"rare.csv","target":"y"} | task.type=classification
0 1 | its own | rows: 100 for training \+ 30 for tests, all of v\.csv, 2 columns and 'y' | run.json --output whole
2 1 | two ways | data\.val_fraction: is given beside data\.val_path | run.json --output out | data.val_fraction=0.1
2 1 | not there | cannot open none\.csv | run.json --output out | data.val_path=none.csv
2 1 | no rows | names\.csv: has no rows | run.json --output out | data.val_path=names.csv
2 1 | no target | lacks\.csv: has no column 'y' \(data\.target\) | --evaluate whole --test lacks.csv
2 1 | no rows to test | names\.csv: has no rows | --evaluate whole --test names.csv
0 2 | rows that are known | warning: 2 of the 10 rows of some\.csv are the same as a row of t\.csv | run.json --output known | data.val_path=some.csv
2 1 | not both | --test excludes --samples-of | --evaluate whole --test v.csv --samples x.csv --samples-of train
2 1 | of nothing | --samples-of requires --samples | --evaluate whole --samples-of train
lacks out
0 1 | shares | done | run.json --output drawn | data.val_path="" | data.val_fraction=0.2
0 1 | the same | tests take the 20 rows of t\.csv that the model's run held out$ | --evaluate drawn
0 1 | others | tests take [0-9]+ of the 300 rows of new\.csv, by the share that the model's run drew when it held out 20; .* --test PATH | --evaluate drawn | data.path=new.csv
)table");
  const nlohmann::json own = tested(program, "--evaluate whole");
  CHECK(own["samples"] == 30);
  CHECK(tested(program, "--evaluate whole --samples train.csv --samples-of train")["samples"] ==
        100);
  CHECK(contains(program.read("train.csv"), "t.csv:2,"));
  CHECK(program.read("train.csv").find("v.csv") == std::string::npos);
  CHECK(tested(program, "--evaluate drawn --samples rest.csv --samples-of train")["samples"] == 80);
  std::filesystem::remove("t.csv");
  std::filesystem::remove("v.csv");
  CHECK(tested(program, "--evaluate whole --test new.csv")["samples"] == 300);
  CHECK(tested(program, "--evaluate drawn --test new.csv")["samples"] == 300);
  CHECK(contains(program.check("all", 1, 0, "all 300 rows", "--evaluate whole --test new.csv").err,
                 "data: tests take all 300 rows of new.csv"));
}

TEST_CASE("tables: classes and categories that a test set alone has are errors by row") {
  const Program program;
  std::string train = "color,a,kind\n", val = "kind,color,a\n";
  for (int r = 0; r < 40; ++r)
    train += fmt::format("{},{},{}\n", r % 3 == 0 ? "red" : "blue", r, r % 2 == 0 ? "cat" : "dog");
  program.write("t.csv", train);
  program.write("class.csv", val + "cat,red,1\nbird,red,2\n");
  program.write("color.csv", val + "cat,red,1\ndog,mauve,2\n");
  program.write("right.csv", val + "dog ,blue,1\n \"cat\",red,2\n");
  program.write("run.json",
                config_of(R"("path": "t.csv", "val_path": "right.csv", "target": "kind")",
                          R"(, "task": {"type": "classification"})"));
  program.play(R"table(
0 1 | right | 40 for training \+ 2 for tests | run.json --output whole
2 1 | a class | class\.csv: row 3, column 'kind': is 'bird'; needed: one of the 2 classes | run.json --output out | data.val_path=class.csv
2 1 | of the model, too | class\.csv: row 3, column 'kind': is 'bird' | --evaluate whole --test class.csv
2 1 | a category | color\.csv: row 3, column 'color': is 'mauve'; needed: a category of the training rows: 'blue', 'red' | run.json --output out | data.val_path=color.csv
0 1 | that counts as empty | warning: 1 cell of column 'color' is no category of the training rows, such as 'mauve' | run.json --output mean | data.val_path=color.csv | data.missing=mean
lacks out
)table");
  const auto model = load_model("mean");
  CHECK(model->read_table("color.csv").numbers[3] == 0.0F);
  CHECK(model->read_table("color.csv").numbers[4] == 0.0F);
  CHECK(contains(test::error_text(ExitCode::kUsage,
                                  [] { (void)load_model("whole")->read_table("color.csv"); }),
                 "color.csv: row 3, column 'color': is 'mauve'"));
}

TEST_CASE("tables: init takes columns by name, as the model's weights know them, and its classes") {
  const Program program;
  program.write("t.csv", line_table(0, 100));
  program.write("order.csv", line_table(0, 100, 0.0, true));
  program.write("later.csv", line_table(300, 400, 20.0));
  program.write("lacks.csv", "a,y\n1,2\n2,3\n3,4\n4,5\n");
  std::string more = "c,a,b,y\n";
  std::istringstream lines(line_table(0, 50).substr(6));
  for (std::string line; std::getline(lines, line);) more += "5," + line + "\n";
  program.write("more.csv", more);
  program.write("probe.csv", "b,a\n0.25,3\n-0.5,9\n");
  program.write("run.json", config_of(R"("path": "t.csv", "target": "y", "scale_target": true)"));
  program.play(R"table(
0 1 | the first | done | run.json --output first
let still = init=first/model.safetensors | optimizer.lr=0 | epochs=1
0 1 | another order | columns are taken, and normalised, as first/model\.safetensors had them | run.json --output order | $still | data.path=order.csv
0 1 | other means | columns are taken | run.json --output later | $still | data.path=later.csv
0 1 | a column more | 2 columns and 'y' | run.json --output more | $still | data.path=more.csv
0 2 | without the key | columns are taken | run.json --output unscaled | $still | data.scale_target=false
2 1 | a column less | lacks\.csv: has no column 'b' \(which the model of first/model\.safetensors was trained with\) | run.json --output out | $still | data.path=lacks.csv
0 1 | new columns, where weights are left out | columns are other ones than those of | run.json --output skipped | data.path=lacks.csv | init={"file": "first/model.safetensors", "skip": ["1.*"]} | batch_size=1 | data.val_fraction=0
lacks out
)table");
  const auto predicted = [](const std::string& run) {
    const auto model = load_model(run);
    return model->logits(std::span<const float>(model->read_table("probe.csv").numbers));
  };
  const std::vector<float> first = predicted("first");
  CHECK(first[0] == doctest::Approx(13.5).epsilon(0.2));  // 3 a - 2 b + 5
  for (const char* run : {"order", "later", "more", "unscaled"}) {
    CAPTURE(run);
    CHECK(predicted(run) == first);
  }
}

TEST_CASE("tables: a category may be a learned vector in the place of its inputs") {
  const Program program;
  std::string text = "a,kind,b,y\n";
  const char* kinds[] = {"x", "y", "z"};
  for (int r = 0; r < 200; ++r)
    text += fmt::format("{},{},{},{}\n", draw(static_cast<std::uint64_t>(r), 0), kinds[r % 3],
                        r % 5, r % 3 == 0 ? 4.0 : -1.0);
  program.write("t.csv", text);
  program.write("run.json", config_of(R"("path": "t.csv", "target": "y")"));
  program.check("a run", 1, 0,
                R"(categories: 'kind' \(inputs 1 to 3\), so that 3 columns become 5 inputs)",
                "run.json --output run",
                {R"(model={"type": "sequential", "layers": [
          {"type": "embed_inputs", "first": 1, "inputs": 3, "embedding_dim": 2},
          {"type": "linear", "out_features": 8}, {"type": "relu"}, {"type": "linear", "out_features": 1}]})",
                 "precision=fp64"});
  CHECK(program.summary("run")["test_r2"].get<double>() > 0.9);
  const SafetensorsFile file = read_safetensors("run/model.safetensors");
  CHECK(file.tensors.at("0.weight").shape == Shape{2, 3});
  // The layer by hand: numbers stay, and of the category its column of the weight stands between
  const std::vector<double> table = test::numbers_in(file, "0.weight"),
                            weight = test::numbers_in(file, "1.weight"),
                            bias = test::numbers_in(file, "1.bias"),
                            last = test::numbers_in(file, "3.weight"),
                            end = test::numbers_in(file, "3.bias");
  program.write("probe.csv", "b,kind,a\n2,z,0.5\n");
  const auto model = load_model("run");
  const TableRows rows = model->read_table("probe.csv");
  REQUIRE(rows.numbers.size() == 5);
  const double x[] = {rows.numbers[0], table[2], table[5], rows.numbers[4]};
  double expected = end[0];
  for (std::size_t h = 0; h < 8; ++h) {
    double sum = bias[h];
    for (std::size_t i = 0; i < 4; ++i) sum += weight[h * 4 + i] * x[i];
    expected += last[h] * std::max(sum, 0.0);
  }
  CHECK(model->logits(std::span<const float>(rows.numbers))[0] ==
        doctest::Approx(expected).epsilon(1e-4));
}

TEST_CASE("tables: classes stay the model's where a run goes on") {
  const Program program;
  std::string all = "a,kind\n", two = all, others = all;
  for (int r = 0; r < 60; ++r) {
    all += fmt::format("{},{}\n", r, r % 3 == 0 ? "ant" : r % 3 == 1 ? "bee" : "cat");
    two += fmt::format("{},{}\n", r, r % 2 == 0 ? "cat " : "bee");
    others += fmt::format("{},{}\n", r, r % 3 == 0 ? "ant" : r % 3 == 1 ? "bee" : "eel");
  }
  program.write("t.csv", all);
  program.write("two.csv", two);
  program.write("others.csv", others);
  program.write("run.json", config_of(R"("path": "t.csv", "target": "kind")",
                                      R"(, "task": {"type": "classification"})"));
  program.play(R"table(
0 1 | the first | done | run.json --output first
let on = init=first/model.safetensors | epochs=1
0 1 | fewer | done | run.json --output two | $on | data.path=two.csv
2 1 | another | others\.csv: row 4, column 'kind': is 'eel'; needed: one of the 3 classes that first/model\.safetensors has | run.json --output out | $on | data.path=others.csv
lacks out
)table");
  CHECK(load_model("two")->classes() == std::vector<std::string>{"ant", "bee", "cat"});
}

TEST_CASE("tables: scaled targets are learnt whatever their unit, and told in it") {
  const Program program;
  const std::string lines = line_table(0, 200).substr(6);
  std::string text = "a,b,y\n";
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) {
    const std::size_t comma = line.rfind(',');
    text += fmt::format("{},{}\n", line.substr(0, comma),
                        1e6 + 1e4 * std::stod(line.substr(comma + 1)));
  }
  program.write("t.csv", text);
  program.write("run.json", config_of(R"("path": "t.csv", "target": "y", "val_fraction": 0.25)",
                                      R"(, "task": {"type": "regression"})"));
  program.play(R"table(
0 2 | scaled | done | run.json --output scaled | data.scale_target=true
0 1 | not | done | run.json --output plain
0 1 | its rows | train_r2 | --evaluate scaled --samples rows.csv --samples-of train
0 1 | its tests | test_r2 | --evaluate scaled --samples tests.csv
)table");
  const nlohmann::json scaled = program.summary("scaled"), plain = program.summary("plain");
  CHECK(scaled["test_r2"].get<double>() > 0.9);
  CHECK(plain["test_r2"].get<double>() < 0.0);  // far from a million yet
  // What predict says of the test rows, against their targets, is what the test has said
  const auto model = load_model("scaled");
  const TableRows rows = model->read_table("t.csv");
  const std::vector<float> predicted = model->logits(std::span<const float>(rows.numbers));
  CsvFile tests("tests.csv", program.read("tests.csv")), file("t.csv", text);
  std::vector<double> targets;
  while (file.next()) targets.push_back(file.number(2));
  double sizes = 0.0, squares = 0.0, count = 0.0;
  while (tests.next()) {
    const std::string& name = tests.cell(0);
    const auto row = static_cast<std::size_t>(std::stoi(name.substr(name.rfind(':') + 1))) - 2;
    CHECK(tests.number(1) == doctest::Approx(targets[row]).epsilon(1e-6));
    CHECK(tests.number(2) == doctest::Approx(predicted[row]).epsilon(1e-6));
    sizes += std::abs(predicted[row] - targets[row]);
    squares += (predicted[row] - targets[row]) * (predicted[row] - targets[row]);
    ++count;
  }
  CHECK(count == 50.0);
  const nlohmann::json again = tested(program, "--evaluate scaled");
  CHECK(again["test_mae"].get<double>() == doctest::Approx(sizes / count).epsilon(1e-3));
  CHECK(again["test_mse"].get<double>() == doctest::Approx(squares / count).epsilon(1e-3));
}

TEST_CASE("tables: r2 of targets that are all the same is none, and ends no run") {
  const Program program;
  program.write("t.csv", line_table(0, 60));
  program.write("one.csv", line_table(70, 71));
  program.write("same.csv", "a,b,y\n1,0,0.1\n2,0,0.1\n3,1,0.1\n");
  program.write("run.json",
                config_of(R"("path": "t.csv", "target": "y", "val_path": "one.csv")",
                          R"(, "early_stopping": {"metric": "test_r2", "patience": 1})"));
  for (const char* tests : {"one.csv", "same.csv"}) {
    CAPTURE(tests);
    program.check("a run", 1, 0, "gives no test_r2, as all its targets are the same",
                  std::string("run.json --output ") + tests + ".run",
                  {std::string("data.val_path=") + tests, "evaluate.every_epochs=1"});
    const nlohmann::json summary = program.summary(std::string(tests) + ".run");
    CHECK(summary["test_r2"].is_null());
    CHECK(summary["steps"] == 120);  // 20 epochs of 6
    CHECK(tested(program, std::string("--evaluate ") + tests + ".run")["test_r2"].is_null());
  }
}

TEST_CASE("tables: a model of an earlier version is tested on the rows that it held out") {
  const Program program;
  std::string table = "a,b,y\n";
  for (int r = 0; r < 100; ++r) table += fmt::format("{}.0,{},{}\n", r, r % 7, 2 * r);
  program.write("t.csv", table);
  program.write("run.json", config_of(R"("path": "t.csv", "target": "y", "val_fraction": 0.2)"));
  program.check("a run", 1, 0, "done", "run.json --output now", {"epochs=1"});
  SafetensorsFile file = read_safetensors("now/model.safetensors");
  nlohmann::json share = nlohmann::json::parse(file.metadata.at("starling.test_share"));
  CHECK(share["by"] == "values");
  // As it was: draws of the lines' texts, of which the 20 lowest were tests
  share.erase("by");
  std::vector<std::pair<std::uint64_t, int>> draws;
  std::istringstream lines(table.substr(6));
  int row = 2;
  for (std::string line; std::getline(lines, line); ++row) {
    const Philox4x32 bits =
        random_bits(1, RandomStream::kPartition, 0, std::stoull(checksum(line), nullptr, 16));
    draws.emplace_back(std::uint64_t{bits.v[0]} << 32 | bits.v[1], row);
  }
  std::sort(draws.begin(), draws.end());
  share["most"] = {draws[19].first};
  share["digest"] = 0;
  std::set<std::string> expected;
  for (int i = 0; i < 20; ++i)
    expected.insert(fmt::format("t.csv:{}", draws[static_cast<std::size_t>(i)].second));
  file.metadata["starling.test_share"] = share.dump();
  nlohmann::json columns = nlohmann::json::parse(file.metadata.at("starling.columns"));
  for (const char* key : {"kinds", "categories", "missing", "target_mean", "target_std"})
    columns.erase(key);
  file.metadata["starling.columns"] = columns.dump();
  file.metadata.erase("starling.checksums");
  add_checksums(file);
  write_safetensors("before.safetensors", file);
  CHECK(tested(program, "--evaluate before.safetensors --samples rows.csv")["samples"] == 20);
  std::set<std::string> rows;
  CsvFile samples("rows.csv", program.read("rows.csv"));
  while (samples.next()) rows.insert(samples.cell(0));
  CHECK(rows == expected);
}

}  // namespace starling
