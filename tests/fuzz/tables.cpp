// Tables drawn from a seed that the input gives, each written twice as two programs would, against
// a model of what docs/data.md says: the inputs, which rows are tests, and what is refused.
// fuzz_tables --runs 10000 --seed 1 CORPUS: so many trials in one process.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "apps/data/dataset.h"
#include "apps/inference/description.h"
#include "apps/inference/table.h"
#include "core/config.h"
#include "core/csv.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace starling;
using nlohmann::json;

using fuzz::expect;

struct Draw : fuzz::Draw {
  template <class T>
  const T& of(const std::vector<T>& all) {
    return all[below(all.size())];
  }
  template <class T>
  void shuffle(std::vector<T>& all) {
    for (std::size_t k = all.size(); k > 1; --k) std::swap(all[k - 1], all[below(k)]);
  }
};

enum class Kind : std::uint8_t { kNumber, kBoolean, kWords };

struct Cell {
  bool missing = false;
  double number = 0.0;  ///< 0 or 1 of a boolean
  std::string word;
};

struct Column {
  std::string name;
  Kind kind = Kind::kNumber;
  std::vector<std::string> words;
};

struct Table {
  std::vector<Column> columns;  ///< the first is the target
  std::vector<std::vector<Cell>> rows;
};

double drawn_number(Draw& draw) {
  const double unit = static_cast<double>(draw.below(2000001)) / 1e6 - 1.0;
  switch (draw.below(5)) {
    case 0: return static_cast<double>(draw.below(20)) - 10.0;
    case 1: return 0.0;
    case 2: return unit * std::pow(10.0, static_cast<double>(draw.below(9)) - 4.0);
    default: return unit;
  }
}

std::string spelled(Draw& draw, double number) {
  if (number == std::floor(number) && draw.one_in(2))
    return draw.one_in(2) ? fmt::format("{:.1f}", number) : fmt::format("{:+.0f}", number);
  if (number == 0.0) return draw.of<std::string>({"0", "-0", "0.0", "0e7", "+0"});
  return draw.one_in(3)   ? fmt::format("{:.17e}", number)
         : draw.one_in(2) ? fmt::format("{:+.17g}", number)
                          : fmt::format("{}", number);
}

std::string spelled(Draw& draw, const Column& column, const Cell& cell) {
  if (cell.missing)
    return draw.of<std::string>({"", " ", "NA", "nan", "NaN", "null", "#N/A", "n/a"});
  if (column.kind == Kind::kNumber) return spelled(draw, cell.number);
  std::string word = cell.word;
  if (column.kind == Kind::kBoolean) {
    const std::size_t capitals = draw.below(3);
    for (std::size_t i = 0; i < word.size(); ++i)
      if (capitals == 0 || (capitals == 1 && i == 0))
        word[i] = static_cast<char>(std::toupper(static_cast<unsigned char>(word[i])));
  }
  return word;
}

std::string in_file(Draw& draw, std::string text, bool quoted) {
  if (draw.one_in(8)) text += draw.of<std::string>({" ", "\t", "\xC2\xA0"});
  if (draw.one_in(8)) text.insert(0, " ");
  if (quoted || draw.one_in(10) || text.find_first_of(",\"\r\n") != std::string::npos) {
    std::string inside;
    for (const char c : text) inside += c == '"' ? std::string("\"\"") : std::string(1, c);
    return '"' + inside + '"';
  }
  return text;
}

/// One cell that is written otherwise than the table has it.
struct Fault {
  std::size_t row = 0, column = 0;
  std::string text;
};

/// Rows in this order; columns in any, an index in front of some.
std::string written(Draw& draw, const Table& table, const std::vector<std::size_t>& order,
                    const std::optional<Fault>& fault) {
  std::vector<std::size_t> columns(table.columns.size());
  std::iota(columns.begin(), columns.end(), std::size_t{0});
  draw.shuffle(columns);
  const bool quoted = draw.one_in(3), index = draw.one_in(4), mark = draw.one_in(4);
  const std::string end = draw.one_in(2) ? "\n" : "\r\n";
  std::string text = mark ? "\xEF\xBB\xBF" : "";
  if (index) text += draw.one_in(2) ? "," : "Unnamed: 0,";
  for (const std::size_t c : columns)
    text += in_file(draw, table.columns[c].name, quoted) + (c == columns.back() ? "" : ",");
  text += end;
  for (std::size_t place = 0; place < order.size(); ++place) {
    if (index) text += fmt::format("{},", place);
    for (const std::size_t c : columns) {
      const bool wrong = fault && fault->row == order[place] && fault->column == c;
      const std::string cell =
          wrong ? fault->text : spelled(draw, table.columns[c], table.rows[order[place]][c]);
      text += in_file(draw, cell, quoted) + (c == columns.back() ? "" : ",");
    }
    text += end;
  }
  return text;
}

Table drawn_table(Draw& draw, bool classes, bool empty) {
  static const std::vector<std::string> kNames{"size", "a b",   "col,1", "q\"n", "é",
                                               "x",    "Z (m)", "{0}",   "row",  "no"};
  static const std::vector<std::string> kWords{"red",  "Red wine", "a,b", "q\"",   "two\nlines",
                                               "café", "-",        "{}",  "maybe", "e5"};
  Table table;
  std::vector<std::string> names = kNames;
  draw.shuffle(names);
  const std::size_t width = 2 + draw.below(5);
  for (std::size_t c = 0; c < width; ++c) {
    Column& column = table.columns.emplace_back();
    column.name = names[c];
    column.kind =
        c == 0 ? (classes ? Kind::kWords : Kind::kNumber) : static_cast<Kind>(draw.below(3));
    if (column.kind == Kind::kBoolean)
      column.words = draw.one_in(2) ? std::vector<std::string>{"no", "yes"}
                                    : std::vector<std::string>{"false", "true"};
    if (column.kind != Kind::kWords) continue;
    column.words = kWords;
    draw.shuffle(column.words);
    column.words.resize(2 + draw.below(3));
  }
  table.columns.push_back({.name = "unique", .kind = Kind::kNumber, .words = {}});
  const std::size_t rows = 20 + draw.below(40);
  for (std::size_t r = 0; r < rows; ++r) {
    auto& row = table.rows.emplace_back();
    for (std::size_t c = 0; c < table.columns.size(); ++c) {
      const Column& column = table.columns[c];
      Cell& cell = row.emplace_back();
      cell.number =
          c + 1 == table.columns.size() ? static_cast<double>(r) + 0.25 : drawn_number(draw);
      if (!column.words.empty()) {  // each is seen
        const std::size_t w = r < column.words.size() ? r : draw.below(column.words.size());
        cell.word = column.words[w];
        cell.number = static_cast<double>(w);
      }
      cell.missing = empty && c > 0 && c + 1 < table.columns.size() && r >= 8 && draw.one_in(6);
    }
  }
  return table;
}

struct Sample {
  std::vector<float> inputs;
  double target = 0.0;
  friend bool operator==(const Sample&, const Sample&) = default;
};

/// Samples by the table's row.
std::map<std::size_t, Sample> samples_of(const Dataset& dataset, Dataset::Split split,
                                         const std::vector<std::size_t>& order) {
  const DatasetInfo info = dataset.info();
  std::map<std::size_t, Sample> samples;
  const std::int64_t count =
      split == Dataset::Split::kTrain ? info.train_samples : info.test_samples;
  for (std::int64_t i = 0; i < count; ++i) {
    Sample sample;
    sample.inputs.resize(static_cast<std::size_t>(info.tensors[0].shape.elements()));
    float number = 0.0F;
    std::int32_t label = 0;
    std::byte* out[] = {reinterpret_cast<std::byte*>(sample.inputs.data()),
                        info.classes > 0 ? reinterpret_cast<std::byte*>(&label)
                                         : reinterpret_cast<std::byte*>(&number)};
    dataset.read(split, i, out);
    sample.target = info.classes > 0 ? label : static_cast<double>(number);
    const std::string name = dataset.name(split, i);
    const std::size_t row = order.at(std::stoul(name.substr(name.rfind(':') + 1)) - 2);
    expect(samples.emplace(row, std::move(sample)).second, "a row is one sample");
  }
  return samples;
}

std::unique_ptr<Dataset> made(const json& keys, bool classes, std::uint64_t seed,
                              const SafetensorsFile* model = nullptr,
                              const std::optional<TestShare>& share = {}) {
  static const bool once = (register_builtin_datasets(), true);
  (void)once;
  ConfigSection section(keys, "trial.json");
  auto dataset = datasets().make("csv", "data.type", section, seed);
  section.finish();
  if (model) {
    dataset->use_model(*model, "trial.safetensors");
    dataset->use_only_tests();
  }
  dataset->use_task(classes ? "classification" : "regression");
  if (share) dataset->use_test_share(*share);
  dataset->open();
  return dataset;
}

/// The inputs that a table becomes, before they are normalised: of each column, in the file's
/// order.
std::size_t inputs_of(const Table& table, const std::string& missing) {
  std::size_t inputs = 0;
  for (std::size_t c = 1; c < table.columns.size(); ++c) {
    const Column& column = table.columns[c];
    inputs += column.kind == Kind::kWords ? column.words.size() : 1;
    const bool empty = std::any_of(table.rows.begin(), table.rows.end(),
                                   [&](const auto& row) { return row[c].missing; });
    inputs += missing == "column" && empty ? 1 : 0;
  }
  return inputs;
}

void check_refused(Draw& draw, const Table& table, const std::vector<std::size_t>& order, json keys,
                   bool classes) {
  Fault fault{.row = draw.below(table.rows.size()), .column = 0, .text = ""};
  static const std::vector<std::string> kNoNumbers{"inf",   "-Infinity", "1,234", "0x1p3",
                                                   "1e400", "12 kg",     "cat"};
  std::vector<std::size_t> numbers;
  for (std::size_t c = classes ? 1 : 0; c < table.columns.size(); ++c)
    if (table.columns[c].kind == Kind::kNumber) numbers.push_back(c);
  if (!draw.one_in(3)) {
    fault.column = draw.of(numbers);
    fault.text = draw.of(kNoNumbers);
  } else if (keys["missing"] == "error" && draw.one_in(2)) {
    fault.column = draw.below(table.columns.size());
  }
  const auto place = std::find(order.begin(), order.end(), fault.row) - order.begin();
  keys["path"] = fuzz::file("bad.csv", written(draw, table, order, fault));
  try {
    (void)made(keys, classes, 1);
  } catch (const Error& error) {
    const std::string message = error.what();
    expect(error.code() == ExitCode::kUsage && message.find('\n') == std::string::npos, message);
    expect(message.find(fmt::format("row {}, column", place + 2)) != std::string::npos, message);
    return;
  }
  expect(false, "a refusal of '" + fault.text + "' in " + table.columns[fault.column].name);
}

void try_table(Draw& draw) {
  const bool classes = draw.one_in(2), own = draw.one_in(4);
  const std::string missing = draw.of<std::string>({"error", "mean", "column"});
  const Table table = drawn_table(draw, classes, missing != "error");
  std::vector<std::size_t> orders[2];
  for (auto& order : orders) {
    order.resize(table.rows.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    draw.shuffle(order);
  }
  const double fraction = draw.of<double>({0.1, 0.25, 0.4});
  json keys{{"target", table.columns[0].name},
            {"missing", missing},
            {"scale_target", draw.one_in(2)},
            {"path", fuzz::file("0.csv", written(draw, table, orders[0], {}))}};
  const std::string other = fuzz::file("1.csv", written(draw, table, orders[1], {}));
  if (draw.one_in(4)) return check_refused(draw, table, orders[0], keys, classes);
  if (own) {
    keys["val_path"] = other;
  } else {
    keys["val_fraction"] = fraction;
  }
  const std::uint64_t seed = draw.below(100);
  const auto first = made(keys, classes, seed);
  const DatasetInfo info = first->info();
  expect(info.tensors[0].shape.elements() == static_cast<std::int64_t>(inputs_of(table, missing)),
         "how many inputs there are");
  const auto train = samples_of(*first, Dataset::Split::kTrain, orders[0]),
             tests = samples_of(*first, Dataset::Split::kTest, orders[own ? 1 : 0]);

  // How many rows are tests, by the rule
  std::map<std::string, std::size_t> counts;
  for (const auto& row : table.rows) ++counts[classes ? row[0].word : ""];
  std::size_t expected = own ? table.rows.size() : 0;
  for (const auto& [name, count] : counts) {
    if (!own)
      expected += std::min<std::size_t>(
          static_cast<std::size_t>(std::llround(static_cast<double>(count) * fraction)), count - 1);
  }
  expect(tests.size() == expected, fmt::format("{} tests, not {}", expected, tests.size()));
  expect(train.size() + (own ? 0 : tests.size()) == table.rows.size(), "each row is a sample");

  // The last column by hand: it is the last or the one before in no known place, so it is found by
  // what it must be
  double mean = 0.0, squares = 0.0;
  for (const auto& [row, sample] : train) mean += table.rows[row].back().number;
  mean /= static_cast<double>(train.size());
  for (const auto& [row, sample] : train)
    squares += std::pow(table.rows[row].back().number - mean, 2.0);
  const double deviation = std::sqrt(squares / static_cast<double>(train.size()));
  const auto is_unique = [&](std::size_t i) {
    return std::all_of(train.begin(), train.end(), [&](const auto& entry) {
      const double wanted = (table.rows[entry.first].back().number - mean) / deviation;
      return std::abs(entry.second.inputs[i] - wanted) < 1e-5;
    });
  };
  bool found = false;
  for (std::size_t i = 0; i < inputs_of(table, missing); ++i) found = found || is_unique(i);
  expect(found, "a column of numbers is normalised by the training rows");

  // The same rows are tests of the table that another program wrote, and say the same
  ModelDescription description;
  description.config = R"({"model": {}})";
  description.classes = info.class_names;
  description.image = info.tensors[0].shape;
  info.collate().describe(info, description);
  SafetensorsFile file;
  describe(description, file);
  json later = keys;
  later[own ? "val_path" : "path"] = other;
  if (own) later["path"] = "/nowhere.csv";  // it is not needed
  const auto again = made(later, classes, seed + 1, &file, info.test_share);
  expect(samples_of(*again, Dataset::Split::kTest, orders[1]) == tests,
         "the table that was saved anew has the same tests");

  // And starling-predict sees of each row what training and tests did
  const TableColumns columns = *description_of(file, "trial.safetensors").table;
  const TableRows rows = read_rows(other, columns);
  expect(rows.rows.size() == table.rows.size(), "each row is predicted");
  for (std::size_t k = 0; k < rows.rows.size(); ++k) {
    const std::size_t row = orders[1][k], width = columns.inputs();
    const auto known = tests.count(row) > 0 ? tests.find(row) : train.find(row);
    expect(std::equal(known->second.inputs.begin(), known->second.inputs.end(),
                      rows.numbers.begin() + static_cast<std::ptrdiff_t>(k * width)),
           fmt::format("row {} is what it was in training", row));
    const Cell& target = table.rows[row][0];
    const double given = known->second.target * columns.target_deviation + columns.target_mean;
    expect(classes ? info.class_names[static_cast<std::size_t>(known->second.target)] == target.word
                   : std::abs(given - target.number) <=
                         1e-5 * (1.0 + std::abs(columns.target_mean) + columns.target_deviation +
                                 std::abs(target.number)),
           fmt::format("the target of row {}", row));
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::uint64_t seed = 0xcbf29ce484222325;
  for (std::size_t i = 0; i < size; ++i) seed = (seed ^ data[i]) * 0x100000001b3;
  Draw draw{{std::mt19937_64(seed)}};
  try_table(draw);
  return 0;
}
