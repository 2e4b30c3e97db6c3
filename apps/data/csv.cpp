// Rows of CSV tables: the input is a vector of numbers, the target a number or a class.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/data/builtin.h"
#include "apps/data/drawn_tests.h"
#include "apps/data/files.h"
#include "apps/inference/description.h"
#include "apps/inference/model_source.h"
#include "apps/inference/table_reader.h"
#include "core/checksum.h"
#include "core/csv.h"
#include "core/error.h"
#include "core/log.h"
#include "core/safetensors.h"
#include "core/text.h"

namespace starling {
namespace {

/// The config's settings for a table's columns.
struct TableKeys {
  std::string target;
  std::vector<std::string> categories, ignore;
  std::int64_t max_categories = 100;
  std::string missing = "error";
};

using Kind = CsvValue::Kind;

/// Statistics of a column's cells.
struct Seen {
  std::int64_t numbers = 0, texts = 0, missing = 0;
  bool as_number = false;                     ///< a text begins like a number
  bool rounded = false;                       ///< fp64 does not hold all digits
  std::map<std::string, std::string> values;  ///< and how each is written first
  std::string other;                          ///< how one of them is written, too
};

struct Moments {
  double mean = 0.0, deviation = 0.0;
};

/// Moments of the finite values of `number(row)`; NaN if there are none.
template <class Number>
Moments moments_of(const std::vector<std::int64_t>& rows, const Number& number) {
  double sum = 0.0, count = 0.0, first = 0.0;
  bool same = true;
  for (const std::int64_t row : rows) {
    const double value = number(row);
    if (std::isnan(value)) continue;
    if (count == 0.0) first = value;
    same = same && value == first;
    sum += value;
    ++count;
  }
  if (count == 0.0) return {std::numeric_limits<double>::quiet_NaN(), 0.0};
  if (same) return {first, 0.0};  // exactly, without rounding
  Moments result{sum / count, 0.0};
  for (const std::int64_t row : rows) {
    const double off = number(row) - result.mean;
    if (!std::isnan(off)) result.deviation += off * off;
  }
  result.deviation = std::sqrt(result.deviation / count);
  return result;
}

[[noreturn]] void too_large(const std::string& file, const std::string& column) {
  fail(ExitCode::kUsage, "data", {.file = file},
       "column {}: its numbers are too large to be normalised; use another unit",
       told_apart(column));
}

/// Determines the inputs of a table's columns, not normalised, and lines for the user on the
/// decisions. A column is numeric (booleans are 1 and 0) or text, i.e. categories. A column with
/// both, or with texts that begin like numbers, is numeric, so that reading it reports the cell.
/// Columns without a name are left out. Reads the whole file.
TableColumns find_columns(CsvFile& file, const TableKeys& keys, std::string& contents) {
  const std::size_t width = file.names().size(), target = file.column(keys.target, "data.target");
  std::vector<bool> out(width, false), categories(width, false);
  const auto mark = [&](const std::vector<std::string>& names, const char* key,
                        std::vector<bool>& marks) {
    for (const std::string& name : names) {
      const std::size_t c = file.column(name, key);
      if (c == target)
        fail(ExitCode::kUsage, "data", {.file = file.name(), .key = key},
             "names the target, {}; leave it out", told_apart(name));
      marks[c] = true;
    }
  };
  mark(keys.ignore, "data.ignore", out);
  mark(keys.categories, "data.categories", categories);
  std::vector<std::string> unnamed;
  for (std::size_t c = 0; c < width; ++c) {
    if (!is_unnamed(file.names()[c]) || c == target || categories[c] || out[c]) continue;
    out[c] = true;
    unnamed.push_back(fmt::format("{}", c + 1));
  }
  std::vector<Seen> seen(width);
  std::int64_t rows = 0;
  for (file.rewind(); file.next(); ++rows) {
    for (std::size_t c = 0; c < width; ++c) {
      if (out[c] || c == target) continue;
      const CsvValue value = csv_value(file.cell(c));
      Seen& column = seen[c];
      if (value.kind == Kind::kMissing) ++column.missing;
      if (value.kind == Kind::kNumber) ++column.numbers;
      if (value.kind == Kind::kText) ++column.texts;
      if (value.kind == Kind::kText && begins_as_number(value.text)) column.as_number = true;
      const bool asked = categories[c] || column.numbers == 0;
      column.rounded |= value.rounded;
      if (!asked || value.kind == Kind::kMissing) continue;
      const std::string written(trimmed(file.cell(c)));
      const auto [first, is_new] = column.values.emplace(value.text, written);
      if (!is_new && column.other.empty() && first->second != written)
        column.other =
            fmt::format("{} is written as {}", told_apart(first->second), told_apart(written));
    }
  }
  TableColumns columns;
  columns.target = keys.target;
  columns.missing = keys.missing;
  std::vector<std::string> of_categories, empty;
  std::size_t taken = 0;
  for (std::size_t c = 0; c < width; ++c) {
    if (out[c] || c == target) continue;
    const std::string& name = file.names()[c];
    const Seen& column = seen[c];
    ++taken;
    if (categories[c] || (column.texts > 0 && column.numbers == 0 && !column.as_number)) {
      if (std::ssize(column.values) > keys.max_categories)
        fail(ExitCode::kUsage, "data", {.file = file.name()},
             "column {} has {} different texts in {} rows, and each would be an input; leave it "
             "out by data.ignore, or raise data.max_categories ({})",
             told_apart(name), column.values.size(), rows, keys.max_categories);
      of_categories.push_back(fmt::format("{} (inputs {} to {})", told_apart(name),
                                          columns.inputs(),
                                          columns.inputs() + column.values.size() - 1));
      for (const auto& [value, written] : column.values)
        columns.add(name, TableInput::kCategory, value);
      if (!column.other.empty())
        contents += fmt::format("column {}: {}, too: they are one category\n", told_apart(name),
                                column.other);
    } else {
      columns.add(name, TableInput::kNumber);
      if (column.rounded)
        contents += fmt::format(
            "column {}: integers from 2^53 on are rounded; where they are names of something, put "
            "the column into data.categories\n",
            told_apart(name));
    }
    if (column.missing == 0 || keys.missing == "error") continue;
    empty.push_back(told_apart(name));
    if (keys.missing == "column") columns.add(name, TableInput::kMissing);
  }
  if (taken == 0)
    fail(ExitCode::kUsage, "data", {.file = file.name()},
         "has no column but the target{}; needed: one or more to predict it from",
         unnamed.empty() ? "" : " that has a name");
  if (rows == 0)
    fail(ExitCode::kUsage, "data", {.file = file.name()}, "has no rows below the columns' names");
  if (!of_categories.empty()) {
    contents += fmt::format("categories: {}, so that {} become {} inputs\n",
                            shown(fmt::format("{}", fmt::join(of_categories, ", ")), 400),
                            counted(static_cast<std::int64_t>(taken), "column"), columns.inputs());
  }
  if (!empty.empty())
    contents += fmt::format("empty cells: in {}; {}\n",
                            shown(fmt::format("{}", fmt::join(empty, ", ")), 400),
                            keys.missing == "mean" ? "each is the column's mean, or no category"
                                                   : "each column has an input that says so");
  if (!unnamed.empty())
    contents += fmt::format("left out: column {} without a name, as of an index\n",
                            fmt::join(unnamed, ", "));
  return columns;
}

/// The class names of a column, sorted by byte. Of several spellings of a class (1 and 1.0, True
/// and TRUE) the first is used, with a message; names that look alike are reported too.
/// Error(kUsage) names the row of an empty cell.
std::vector<std::string> find_classes(CsvFile& file, std::size_t column) {
  std::map<std::string, std::set<std::string>> spellings;
  for (file.rewind(); file.next();) {
    const CsvValue value = csv_value(file.cell(column));
    if (value.kind == Kind::kMissing)
      file.refuse(column, "a class; a row without one is no sample: leave it out");
    spellings[value.text].emplace(trimmed(file.cell(column)));
  }
  std::vector<std::string> names;
  std::map<std::string, std::string> capitals;
  for (const auto& [text, spelled] : spellings) {
    names.push_back(*spelled.begin());
    if (spelled.size() > 1)
      log::info("data: class {} is written as {}, too: they are one", told_apart(names.back()),
                told_apart(*std::next(spelled.begin())));
    const auto [other, is_new] = capitals.emplace(lower_case(text), names.back());
    if (!is_new)
      log::info("warning: classes {} and {} differ only in capitals", told_apart(other->second),
                told_apart(names.back()));
  }
  std::sort(names.begin(), names.end());
  if (const auto two = lookalikes(names))
    log::info("warning: classes {} and {} look the same", told_apart(two->first),
              told_apart(two->second));
  return names;
}

/// Sets means and deviations (divisor n) over the training rows. `numbers`: the inputs of each row
/// of `file`. Error(kUsage) with the column if it has no number, or values are too large.
void measure_columns(TableColumns& columns, const std::vector<double>& numbers,
                     const std::vector<std::int64_t>& rows, const std::string& file) {
  const std::size_t width = columns.inputs();
  for (std::size_t i = 0; i < width; ++i) {
    const Moments found = moments_of(
        rows, [&](std::int64_t row) { return numbers[static_cast<std::size_t>(row) * width + i]; });
    if (columns.kinds[i] != TableInput::kNumber) {
      // 0 and 1 are not scaled; a column that is constant in training becomes 0
      columns.deviation[i] = found.deviation > 0.0 ? 1.0 : 0.0;
      continue;
    }
    if (std::isnan(found.mean))
      fail(ExitCode::kUsage, "data", {.file = file},
           "column {} has no number in a training row; leave it out by data.ignore",
           told_apart(columns.names[i]));
    if (!std::isfinite(found.deviation)) too_large(file, columns.names[i]);
    columns.mean[i] = found.mean;
    columns.deviation[i] = found.deviation;
  }
}

/// The same for targets.
void measure_target(TableColumns& columns, const std::vector<double>& targets,
                    const std::vector<std::int64_t>& rows, const std::string& file) {
  const Moments found =
      moments_of(rows, [&](std::int64_t row) { return targets[static_cast<std::size_t>(row)]; });
  if (!std::isfinite(found.deviation)) too_large(file, columns.target);
  columns.target_mean = found.mean;
  if (found.deviation > 0.0) columns.target_deviation = found.deviation;
}

/// Rows are already normalised vectors; a model file records the columns and their normalisation.
struct TableCollate final : Collate {
  TableColumns columns;
  void describe(const DatasetInfo&, ModelDescription& description) const override {
    description.table = columns;
  }
};

/// Columns and classes of an existing model, which is tested or which training starts from.
struct ModelOfTable {
  std::string source;
  std::optional<TableColumns> columns;
  std::vector<std::string> classes;
  bool is_tested = false;  ///< otherwise training starts from it
  bool skips = false;      ///< training starts without some of its tensors
};

class CsvRows final : public Dataset {
 public:
  CsvRows(ConfigSection& section, std::uint64_t seed)
      : path_(section.required_text("path", "file whose first row has the columns' names")),
        val_path_(
            section.text("val_path", "",
                         "another such file, whose rows are all tests; then no rows of path are")),
        seed_(seed) {
    try {
      keys_.target = section.required_text("target", "the column that is predicted");
    } catch (const Error&) {
      (void)CsvFile::read(path_, "data.path");  // report a wrong file name before a missing target
      throw;
    }
    val_fraction_ =
        read_val_fraction(section, !val_path_.empty(), 0.1,
                          "share of the rows used for tests, in classification of each class; "
                          "drawn from the config's seed and the rows' values");
    keys_.categories =
        section.texts("categories", {}, "columns whose numbers are categories (texts always are)");
    keys_.ignore = section.texts("ignore", {}, "columns that are left out");
    section.read("max_categories", keys_.max_categories, Range::closed(1, 1 << 20),
                 "how many categories a column may have: each is an input");
    keys_.missing = section.choice("missing", keys_.missing, {"error", "mean", "column"},
                                   "value of empty cells: the mean of the training rows, with "
                                   "column also 1 in an additional input");
    section.read("scale_target", scale_target_,
                 "regression: targets are normalised by the training rows; predictions, r2, mae "
                 "and mse are in their own unit anyway");
    info_.task = "regression";
  }

  DatasetInfo info() const override { return info_; }
  bool countable() const override { return true; }
  void use_model(const SafetensorsFile& file, const std::string& source) override {
    take_model(file, source);
    model_.is_tested = true;
  }
  void use_initial_model(const std::string& file, bool skips) override {
    take_model(read_model_metadata(file), file);
    model_.skips = skips;
  }
  void use_only_tests() override { only_tests_ = true; }
  void use_task(const std::string& type) override {
    const bool classes = type == "classification";
    if (!model_.columns || val_path_.empty() || !only_tests_) {
      CsvFile file = CsvFile::read(path_, "data.path");
      choose_columns(file, classes);
      read_rows(file, classes, "rows of the table");
    } else {
      columns_ = *model_.columns;
      has_model_columns_ = true;
      if (classes) info_.class_names = model_.classes;
    }
    rows_of_path_ = lines_.size();
    if (!val_path_.empty()) {
      CsvFile file = CsvFile::read(val_path_, "data.val_path");
      read_rows(file, classes, "rows of the test table");
    }
    info_.tensors = {{"features", Shape{static_cast<std::int64_t>(columns_.inputs())}}};
    if (classes) {
      info_.classes = std::ssize(info_.class_names);
      info_.tensors.push_back({"label", Shape{}, DType::kInt32, info_.classes});
    } else {
      info_.tensors.push_back({"target", Shape{1}});
    }
    if (!model_.is_tested) split();  // else in open(), when the model's test_share is known
  }
  void use_test_share(const TestShare& share) override { given_share_ = share; }
  void open() override {
    if (!features_.empty()) return;
    if (model_.is_tested) split();
    if (!has_model_columns_) {
      if (train_.empty())
        fail(ExitCode::kUsage, "data", {.file = path_},
             "all rows are for tests, as equal ones are together; needed: others to train on");
      measure_columns(columns_, numbers_, train_, path_);
      if (scale_target_ && info_.classes == 0)
        measure_target(columns_, wide_targets_, train_, path_);
    }
    normalise();
    auto collate = std::make_shared<TableCollate>();
    collate->columns = columns_;
    info_.collated_by = std::move(collate);
    info_.target_mean = columns_.target_mean;
    info_.target_deviation = columns_.target_deviation;
    numbers_ = {};
    wide_targets_ = {};
    lines_ = {};
    values_ = {};
  }

  void read(Split split, std::int64_t index, std::span<std::byte* const> out) const override {
    const std::size_t row = row_of(split, index), width = columns_.inputs();
    std::memcpy(out[0], features_.data() + row * width, width * sizeof(float));
    if (info_.classes > 0) {
      std::memcpy(out[1], &labels_[row], sizeof(std::int32_t));
    } else {
      std::memcpy(out[1], &targets_[row], sizeof(float));
    }
  }
  std::string name(Split split, std::int64_t index) const override {
    const std::size_t row = row_of(split, index);
    const std::string& path = row < rows_of_path_ ? path_ : val_path_;
    return fmt::format("{}:{}", path.substr(path.rfind('/') + 1), file_rows_[row]);
  }
  std::int64_t label(Split split, std::int64_t index) const override {
    return info_.classes > 0 ? labels_[row_of(split, index)] : Dataset::label(split, index);
  }

 private:
  std::size_t row_of(Split split, std::int64_t index) const {
    return static_cast<std::size_t>(
        (split == Split::kTrain ? train_ : test_)[static_cast<std::size_t>(index)]);
  }

  void take_model(const SafetensorsFile& file, const std::string& source) {
    model_.source = source;
    if (file.metadata.count(kConfigMetadata) == 0) return;  // written by another program
    const ModelDescription description = description_of(file, source);
    model_.columns = description.table;
    model_.classes = description.classes;
  }

  /// Chooses the input columns, and with `classes` the class names: from the existing model if
  /// there is one, else from the table.
  void choose_columns(CsvFile& file, bool classes) {
    const std::size_t target = file.column(keys_.target, "data.target");
    if (!model_.is_tested || !model_.columns) {
      columns_ = find_columns(file, keys_, column_notes_);
      if (classes) info_.class_names = find_classes(file, target);
    }
    if (!model_.columns) return;
    const std::vector<std::string> of_model = model_.columns->columns(),
                                   of_file = columns_.columns();
    // The skipped tensor may be the one whose shape depends on the columns or classes.
    if (model_.skips &&
        std::set(of_model.begin(), of_model.end()) != std::set(of_file.begin(), of_file.end())) {
      column_notes_ += fmt::format("columns are other ones than those of {}, and normalised anew\n",
                                   model_.source);
    } else {
      for (const std::string& name : of_model) (void)file.column(name, trained_with());
      columns_ = *model_.columns;
      has_model_columns_ = true;
      if (!model_.is_tested)
        column_notes_ =
            fmt::format("columns are taken, and normalised, as {} had them\n", model_.source);
    }
    if (!classes || model_.classes.empty()) return;
    std::set<std::string> known;
    for (const std::string& name : model_.classes) known.insert(csv_value(name).text);
    const bool within =
        std::all_of(info_.class_names.begin(), info_.class_names.end(),
                    [&](const std::string& name) { return known.count(csv_value(name).text) > 0; });
    // read_rows() reports rows of classes that the model does not have
    if (within || !model_.skips) info_.class_names = model_.classes;
  }
  std::string trained_with() const {
    return "which the model of " + model_.source + " was trained with";
  }

  void read_rows(CsvFile& file, bool classes, const char* what) {
    const std::size_t target = file.column(keys_.target, "data.target");
    TableReader reader(file, columns_,
                       has_model_columns_ || only_tests_ ? trained_with() : "of " + path_);
    std::map<std::string, std::int32_t> labels;
    for (std::size_t c = 0; c < info_.class_names.size(); ++c)
      labels.emplace(csv_value(info_.class_names[c]).text, static_cast<std::int32_t>(c));
    std::map<std::string, std::size_t> places{{keys_.target, target}};
    for (const std::string& name : columns_.columns()) places.emplace(name, file.column(name, ""));
    std::uint32_t crc = 0;
    const std::size_t before = lines_.size();
    for (file.rewind(); file.next();) {
      reader.read_row(numbers_);
      const CsvValue value = csv_value(file.cell(target));
      if (classes) {
        const auto label = labels.find(value.text);
        if (value.kind == Kind::kMissing || label == labels.end())
          file.refuse(target,
                      fmt::format("one of the {} classes that {} has", info_.class_names.size(),
                                  model_.classes.empty() ? path_ : model_.source));
        labels_.push_back(label->second);
      } else {
        if (value.kind != Kind::kNumber)
          file.refuse(target,
                      R"(a number; where it names classes, "task": {"type": "classification"})");
        wide_targets_.push_back(value.number);
        if (!std::isfinite(static_cast<float>(value.number)))
          file.refuse(target, "a number that fp32 can hold");
      }
      std::string values;
      for (const auto& [name, place] : places)
        values += name + '\0' + csv_value(file.cell(place)).text + '\0';
      values_.push_back(checksum(values));
      file_rows_.push_back(file.row());
      const std::string& line = lines_.emplace_back(file.line());
      crc = checksum_of(text_bytes(line), crc);
    }
    if (lines_.size() == before)
      fail(ExitCode::kUsage, "data", {.file = file.name()}, "has no rows below the columns' names");
    reader.tell_unknown();
    info_.checksums[what] = crc;
  }

  void split() {
    const bool classes = info_.classes > 0;
    const auto at = [](std::int64_t row) { return static_cast<std::size_t>(row); };
    // Models from older versions drew tests by the rows' text instead of their values.
    const std::vector<std::string>& names =
        given_share_ && given_share_->by.empty() ? lines_ : values_;
    DrawnTests drawn;
    if (val_fraction_ > 0.0) {
      drawn = draw_tests({.samples = std::ssize(lines_),
                          .classes = classes ? info_.classes : 1,
                          .label = [&](std::int64_t row) { return classes ? labels_[at(row)] : 0; },
                          .name = [&](std::int64_t row) { return names[at(row)]; },
                          .seed = seed_,
                          .fraction = val_fraction_,
                          .by = "values",
                          .kept = given_share_,
                          .who = "csv",
                          .noun = "row",
                          .where = path_,
                          .too_small = classes ? "no class in " + path_ + " is a whole row"
                                               : "all rows of " + path_ + " is no whole row"});
      info_.test_share = drawn.share;
    } else {
      drawn = own_tests(static_cast<std::int64_t>(rows_of_path_), std::ssize(lines_));
    }
    train_ = std::move(drawn.train);
    test_ = std::move(drawn.test);
    info_.train_samples = std::ssize(train_);
    info_.test_samples = std::ssize(test_);
    if (!val_path_.empty()) log_tests();
    const auto columns = std::ssize(columns_.columns());
    if (classes && !model_.is_tested) tell_classes();
    info_.contents =
        fmt::format("rows: {} for training + {} for tests{}, {} and {}\n{}", train_.size(),
                    test_.size(), val_path_.empty() ? "" : ", all of " + val_path_,
                    counted(columns, "column"), told_apart(columns_.target), column_notes_);
  }

  /// What of the classes a model cannot learn, or a test not show.
  void tell_classes() const {
    if (info_.classes == 1)
      log::info(
          "warning: data: {}: column {} has one class, {}: the model will say it of everything",
          path_, told_apart(columns_.target), told_apart(info_.class_names[0]));
    for (const auto& [rows, noun] : {std::pair(&train_, "training"), std::pair(&test_, "test")}) {
      std::vector<bool> has(static_cast<std::size_t>(info_.classes), false);
      for (const std::int64_t row : *rows)
        has[static_cast<std::size_t>(labels_[static_cast<std::size_t>(row)])] = true;
      std::vector<std::string> lacking;
      for (std::size_t c = 0; c < has.size(); ++c)
        if (!has[c]) lacking.push_back(told_apart(info_.class_names[c]));
      if (!rows->empty() && !lacking.empty())
        log::info("warning: data: {}: classes without a {} row: {}", path_, noun,
                  shown(fmt::format("{}", fmt::join(lacking, ", ")), 200));
    }
  }

  /// Informs the user about a separate test table, and about rows that it shares with the training
  /// table.
  void log_tests() const {
    if (only_tests_)
      log::info("data: tests take all {} of {}", counted(info_.test_samples, "row"), val_path_);
    const auto tests = values_.begin() + static_cast<std::ptrdiff_t>(rows_of_path_);
    const std::set<std::string_view> trained(values_.begin(), tests);
    const auto known = std::count_if(
        tests, values_.end(), [&](const std::string& row) { return trained.count(row) > 0; });
    if (known > 0)
      log::info("warning: {} of the {} of {} {} the same as a row of {}", known,
                counted(info_.test_samples, "row"), val_path_, known == 1 ? "is" : "are", path_);
  }

  void normalise() {
    const std::size_t width = columns_.inputs();
    features_.reserve(numbers_.size());
    for (std::size_t k = 0; k < numbers_.size(); ++k) {
      const std::size_t i = k % width;
      features_.push_back(static_cast<float>(columns_.normalized(i, numbers_[k])));
      if (!std::isfinite(features_.back()))
        fail(ExitCode::kUsage, "data", {.file = k / width < rows_of_path_ ? path_ : val_path_},
             "column {}: {} is too far from the mean, {}, for fp32", told_apart(columns_.names[i]),
             numbers_[k], columns_.mean[i]);
    }
    for (const double target : wide_targets_)
      targets_.push_back(
          static_cast<float>((target - columns_.target_mean) / columns_.target_deviation));
  }

  std::string path_, val_path_;
  std::uint64_t seed_;
  double val_fraction_ = 0.0;
  TableKeys keys_;
  bool scale_target_ = false, only_tests_ = false;
  DatasetInfo info_;
  ModelOfTable model_;
  TableColumns columns_;
  bool has_model_columns_ = false;  ///< columns_ are those of model_
  std::string column_notes_;        ///< lines for the user on how columns were chosen
  std::optional<TestShare> given_share_;
  // By row: those of `path`, then those of `val_path`
  std::size_t rows_of_path_ = 0;
  std::vector<std::string> lines_;   ///< the rows' text; cleared by open()
  std::vector<std::string> values_;  ///< checksums of the rows' values; cleared by open()
  std::vector<double> numbers_, wide_targets_;  ///< not normalised; cleared by open()
  std::vector<float> features_, targets_;
  std::vector<std::int32_t> labels_;
  std::vector<std::int64_t> file_rows_;     ///< row number in the file, empty lines counted
  std::vector<std::int64_t> train_, test_;  ///< rows, ascending
};

}  // namespace

void register_csv(DatasetRegistry& registry) {
  add_dataset<CsvRows>(
      registry, "csv",
      "rows of a CSV file: numbers and categories, and a number or a class that is "
      "predicted of them");
}

}  // namespace starling
