#include "apps/inference/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "apps/inference/table_reader.h"
#include "core/log.h"
#include "core/text.h"

namespace starling {

void TableColumns::add(const std::string& column, TableInput kind, const std::string& category) {
  names.push_back(column);
  kinds.push_back(kind);
  categories.push_back(category);
  mean.push_back(0.0);
  deviation.push_back(1.0);
}

std::vector<std::string> TableColumns::columns() const {
  std::vector<std::string> result = names;  // inputs of a column are adjacent
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

double TableColumns::normalized(std::size_t input, double number) const {
  if (std::isnan(number) || deviation[input] <= 0.0) return 0.0;
  return (number - mean[input]) / deviation[input];
}

TableReader::TableReader(const CsvFile& file, const TableColumns& columns, const std::string& why)
    : file_(file), columns_(columns) {
  for (std::size_t i = 0; i < columns.inputs(); ++i) {
    if (i == 0 || columns.names[i] != columns.names[i - 1])
      places_.push_back({.place = file.column(columns.names[i], why), .first = i});
    Column& column = places_.back();
    column.end = i + 1;
    if (columns.kinds[i] == TableInput::kNumber) column.number = true;
    if (columns.kinds[i] == TableInput::kCategory) column.known.emplace(columns.categories[i], i);
  }
}

void TableReader::read_row(std::vector<double>& numbers) {
  using Kind = CsvValue::Kind;
  for (Column& column : places_) {
    const CsvValue value = csv_value(file_.cell(column.place));
    bool missing = value.kind == Kind::kMissing;
    std::size_t category = columns_.inputs();  // none
    if (!column.number && !missing) {
      const auto it = column.known.find(value.text);
      missing = it == column.known.end();
      if (!missing) category = it->second;
      if (missing && column.unknown_cells++ == 0) column.unknown = value.text;
    }
    if ((column.number && value.kind == Kind::kText) || (missing && columns_.missing == "error"))
      refuse(column, value);
    for (std::size_t i = column.first; i < column.end; ++i) {
      const TableInput kind = columns_.kinds[i];
      numbers.push_back(kind == TableInput::kNumber
                            ? missing ? std::numeric_limits<double>::quiet_NaN() : value.number
                        : kind == TableInput::kMissing ? (missing ? 1.0 : 0.0)
                                                       : (i == category ? 1.0 : 0.0));
    }
  }
}

void TableReader::refuse(const Column& column, const CsvValue& value) const {
  if (value.kind == CsvValue::Kind::kMissing)
    file_.refuse(column.place,
                 fmt::format(R"({}; "missing": "mean" or "column" of data allows empty cells)",
                             column.number ? "a number" : "a category"));
  if (column.number)
    file_.refuse(column.place,
                 "a number, such as -1.5e3; a column of categories that has numbers, "
                 "too, is named in data.categories");
  std::vector<std::string> known;
  for (const auto& [name, input] : column.known) known.push_back(told_apart(name));
  file_.refuse(column.place, fmt::format("a category of the training rows: {}",
                                         shown(fmt::format("{}", fmt::join(known, ", ")), 400)));
}

void TableReader::tell_unknown() const {
  for (const Column& column : places_) {
    if (column.unknown_cells == 0) continue;
    log::info(
        "warning: {} of column {} {} no category of the training rows, such as {}; {} as "
        "empty",
        counted(column.unknown_cells, "cell"), told_apart(file_.names()[column.place]),
        column.unknown_cells == 1 ? "is" : "are", told_apart(column.unknown),
        column.unknown_cells == 1 ? "it counts" : "they count");
  }
}

TableRows read_rows(const std::string& path, const TableColumns& columns) {
  CsvFile file = CsvFile::read(path, {}, true);
  TableReader reader(file, columns, "which the model was trained with");
  TableRows result;
  std::vector<double> numbers;
  while (file.next()) {
    numbers.clear();
    reader.read_row(numbers);
    for (std::size_t i = 0; i < numbers.size(); ++i)
      result.numbers.push_back(static_cast<float>(columns.normalized(i, numbers[i])));
    result.rows.push_back(file.row());
  }
  reader.tell_unknown();
  return result;
}

}  // namespace starling
