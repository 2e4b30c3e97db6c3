#include "apps/data/table_columns.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <set>

#include "core/error.h"
#include "core/log.h"
#include "core/text.h"

namespace starling {
namespace {

using Kind = CsvValue::Kind;

/// Statistics of a column's cells.
struct Seen {
  std::int64_t numbers = 0, booleans = 0, texts = 0, missing = 0;
  bool as_number = false;  ///< a text begins like a number
  std::set<std::string> values;
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

}  // namespace

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
      if (value.kind == Kind::kBoolean) ++column.booleans;
      if (value.kind == Kind::kText) ++column.texts;
      if (value.kind == Kind::kText && begins_as_number(value.text)) column.as_number = true;
      const bool asked = categories[c] || column.numbers == 0;
      if (asked && value.kind != Kind::kMissing) column.values.insert(value.text);
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
      if (static_cast<std::int64_t>(column.values.size()) > keys.max_categories)
        fail(ExitCode::kUsage, "data", {.file = file.name()},
             "column {} has {} different texts in {} rows, and each would be an input; leave it "
             "out by data.ignore, or raise data.max_categories ({})",
             told_apart(name), column.values.size(), rows, keys.max_categories);
      of_categories.push_back(fmt::format("{} (inputs {} to {})", told_apart(name),
                                          columns.inputs(),
                                          columns.inputs() + column.values.size() - 1));
      for (const std::string& value : column.values)
        columns.add(name, TableInput::kCategory, value);
    } else {
      columns.add(name, TableInput::kNumber);
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

void measure_target(TableColumns& columns, const std::vector<double>& targets,
                    const std::vector<std::int64_t>& rows, const std::string& file) {
  const Moments found =
      moments_of(rows, [&](std::int64_t row) { return targets[static_cast<std::size_t>(row)]; });
  if (!std::isfinite(found.deviation)) too_large(file, columns.target);
  columns.target_mean = found.mean;
  if (found.deviation > 0.0) columns.target_deviation = found.deviation;
}

}  // namespace starling
