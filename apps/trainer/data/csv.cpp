// Rows of a table in a CSV file: a vector of numbers each, and what is to be predicted of it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/inference/description.h"
#include "apps/trainer/data/builtin.h"
#include "apps/trainer/data/drawn_tests.h"
#include "apps/trainer/data/files.h"
#include "core/csv.h"
#include "core/error.h"
#include "core/text.h"

namespace starling {
namespace {

/// Rows are vectors of normalised numbers already; a model file keeps how they became so.
struct TableCollate final : Collate {
  TableColumns columns;
  void describe(const DatasetInfo&, ModelDescription& description) const override {
    description.table = columns;
  }
};

class CsvRows final : public Dataset {
 public:
  CsvRows(ConfigSection& section, std::uint64_t seed)
      : path_(section.required_text("path", "file whose first row has the columns' names")),
        seed_(seed) {
    columns_.target = section.required_text("target", "the column that is predicted");
    val_fraction_ =
        section.number("val_fraction", 0.1, Range::half_open(0.0, 1.0),
                       "share of the rows that is for tests, in classification of each class; "
                       "drawn by the config's seed and the rows' texts");
    info_.task = "regression";
  }

  DatasetInfo info() const override { return info_; }
  bool countable() const override { return true; }
  void use_task(const std::string& type) override {
    read_rows(type == "classification");
    split();
  }
  void use_test_share(const TestShare& share) override { kept_share_ = share; }
  void use_model(const SafetensorsFile& file, const std::string& source) override {
    if (file.metadata.count(kConfigMetadata) == 0) return;  // another program's
    kept_columns_ = description_of(file, source).table;
    if (!kept_columns_ || kept_columns_->names == columns_.names) return;
    fail(ExitCode::kUsage, "data", {.file = path_},
         "its columns are not those that the model of {} was trained with", source);
  }
  void open() override {
    if (!features_.empty()) return;
    if (kept_share_) split();
    if (kept_columns_) {
      columns_ = *kept_columns_;
    } else {
      measure_columns();
    }
    normalise();
    auto collate = std::make_shared<TableCollate>();
    collate->columns = columns_;
    info_.collated_by = std::move(collate);
    numbers_ = {};
    lines_ = {};
  }

  void read(Split split, std::int64_t index, std::span<std::byte* const> out) const override {
    const std::size_t row = row_of(split, index), width = columns_.names.size();
    std::memcpy(out[0], features_.data() + row * width, width * sizeof(float));
    if (info_.classes > 0) {
      std::memcpy(out[1], &labels_[row], sizeof(std::int32_t));
    } else {
      std::memcpy(out[1], &targets_[row], sizeof(float));
    }
  }
  std::string name(Split split, std::int64_t index) const override {
    const std::string file = path_.substr(path_.rfind('/') + 1);
    return fmt::format("{}:{}", file, file_rows_[row_of(split, index)]);
  }
  std::int64_t label(Split split, std::int64_t index) const override {
    return info_.classes > 0 ? labels_[row_of(split, index)] : Dataset::label(split, index);
  }

 private:
  std::size_t row_of(Split split, std::int64_t index) const {
    return static_cast<std::size_t>(
        (split == Split::kTrain ? train_ : test_)[static_cast<std::size_t>(index)]);
  }

  void read_rows(bool classes) {
    CsvFile file = CsvFile::read(path_, "data.path");
    const std::size_t target = file.column(columns_.target, "data.target");
    columns_.names = file.names();
    columns_.names.erase(columns_.names.begin() + static_cast<std::ptrdiff_t>(target));
    if (columns_.names.empty())
      fail(ExitCode::kUsage, "data", {.file = path_},
           "has no column but the target; needed: one or more to predict it from");
    std::vector<std::string> names;  // of each row's class
    std::uint32_t checksum = 0;
    while (file.next()) {
      for (std::size_t c = 0; c < file.names().size(); ++c) {
        if (c != target) numbers_.push_back(file.number(c));
      }
      if (classes) {
        names.push_back(file.cell(target));
      } else {
        targets_.push_back(static_cast<float>(file.number(
            target, R"(a number; where it names classes, "task": {"type": "classification"})")));
        if (!std::isfinite(targets_.back())) file.refuse(target, "a number that fp32 can hold");
      }
      file_rows_.push_back(file.row());
      const std::string& line = lines_.emplace_back(file.line());
      checksum =
          checksum_of({reinterpret_cast<const std::uint8_t*>(line.data()), line.size()}, checksum);
    }
    if (lines_.empty())
      fail(ExitCode::kUsage, "data", {.file = path_}, "has no rows below the columns' names");
    info_.checksums = {{"rows of the table", checksum}};
    info_.tensors = {{"features", Shape{static_cast<std::int64_t>(columns_.names.size())}}};
    if (!classes) return info_.tensors.push_back({"target", Shape{1}});
    std::vector<std::string>& sorted = info_.class_names = names;
    std::sort(sorted.begin(), sorted.end());
    sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
    for (const std::string& name : names) {
      const auto place = std::lower_bound(sorted.begin(), sorted.end(), name);
      labels_.push_back(static_cast<std::int32_t>(place - sorted.begin()));
    }
    info_.classes = static_cast<std::int64_t>(sorted.size());
    info_.tensors.push_back({"label", Shape{}, DType::kInt32, info_.classes});
  }

  void split() {
    const bool classes = info_.classes > 0;
    const auto at = [](std::int64_t row) { return static_cast<std::size_t>(row); };
    DrawnTests drawn;
    if (val_fraction_ > 0.0) {
      drawn = draw_tests({.samples = static_cast<std::int64_t>(lines_.size()),
                          .classes = classes ? info_.classes : 1,
                          .label = [&](std::int64_t row) { return classes ? labels_[at(row)] : 0; },
                          .name = [&](std::int64_t row) { return lines_[at(row)]; },
                          .seed = seed_,
                          .fraction = val_fraction_,
                          .kept = kept_share_,
                          .who = "csv",
                          .noun = "row",
                          .where = path_,
                          .too_small = classes ? "no class in " + path_ + " is a whole row"
                                               : "all rows of " + path_ + " is no whole row"});
      info_.test_share = drawn.share;
    } else {
      drawn.train.resize(lines_.size());
      std::iota(drawn.train.begin(), drawn.train.end(), std::int64_t{0});
    }
    train_ = std::move(drawn.train);
    test_ = std::move(drawn.test);
    info_.train_samples = static_cast<std::int64_t>(train_.size());
    info_.test_samples = static_cast<std::int64_t>(test_.size());
    info_.contents = fmt::format(
        "rows: {} for training + {} for tests, {} column{} and {}\n", train_.size(), test_.size(),
        columns_.names.size(), columns_.names.size() == 1 ? "" : "s", told_apart(columns_.target));
  }

  /// Mean and standard deviation (with n below it) of the training rows.
  void measure_columns() {
    const std::size_t width = columns_.names.size();
    if (train_.empty())
      fail(ExitCode::kUsage, "data", {.file = path_},
           "all rows are for tests, as equal ones are together; needed: others to train on");
    const auto rows = static_cast<double>(train_.size());
    columns_.mean.assign(width, 0.0);
    columns_.deviation.assign(width, 0.0);
    for (std::size_t c = 0; c < width; ++c) {
      const auto number = [&](std::int64_t row) {
        return numbers_[static_cast<std::size_t>(row) * width + c];
      };
      double &mean = columns_.mean[c], &deviation = columns_.deviation[c];
      for (const std::int64_t row : train_) mean += number(row);
      mean /= rows;
      const double first = number(train_.front());
      if (std::all_of(train_.begin(), train_.end(),
                      [&](std::int64_t row) { return number(row) == first; })) {
        mean = first;  // whatever rounding has made of it
        continue;
      }
      for (const std::int64_t row : train_) {
        const double off = number(row) - mean;
        deviation += off * off;
      }
      deviation = std::sqrt(deviation / rows);
      if (!std::isfinite(deviation))
        fail(ExitCode::kUsage, "data", {.file = path_},
             "column {}: its numbers are too large to be normalised; use another unit",
             told_apart(columns_.names[c]));
    }
  }

  void normalise() {
    const std::size_t width = columns_.names.size();
    for (std::size_t k = 0; k < numbers_.size(); ++k) {
      const std::size_t c = k % width;
      features_.push_back(static_cast<float>(
          normalized_number(numbers_[k], columns_.mean[c], columns_.deviation[c])));
      if (!std::isfinite(features_.back()))
        fail(ExitCode::kUsage, "data", {.file = path_},
             "column {}: {} is too far from the mean, {}, for fp32", told_apart(columns_.names[c]),
             numbers_[k], columns_.mean[c]);
    }
  }

  std::string path_;
  std::uint64_t seed_;
  double val_fraction_ = 0.0;
  DatasetInfo info_;
  TableColumns columns_;
  std::optional<TestShare> kept_share_;
  std::optional<TableColumns> kept_columns_;
  std::vector<std::string> lines_;  ///< by row of the file, as what follows; until it is open
  std::vector<double> numbers_;     ///< as the file has them; until it is open
  std::vector<float> features_, targets_;
  std::vector<std::int32_t> labels_;
  std::vector<std::int64_t> file_rows_;     ///< which row of the file it is, empty lines counted
  std::vector<std::int64_t> train_, test_;  ///< rows, ascending
};

}  // namespace

void register_csv(DatasetRegistry& registry) {
  registry.add(
      "csv",
      [](ConfigSection& section, std::uint64_t seed) {
        return std::make_unique<CsvRows>(section, seed);
      },
      "rows of a CSV file: numbers, and a number or a class that is predicted of them");
}

}  // namespace starling
