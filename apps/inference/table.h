#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace starling {

/// What an input says of its column's cell: its number; 1 where it is one category, else 0; 1 where
/// it is empty, else 0.
enum class TableInput : std::uint8_t { kNumber, kCategory, kMissing };

/// Columns of a table that are a model's inputs: it takes (number - mean) / deviation, and 0 where
/// the deviation is 0 or the number is missing.
struct TableColumns {
  std::vector<std::string> names;  ///< of each input's column, as all that follows
  std::vector<double> mean, deviation;
  std::string target;  ///< the column that the model predicts
  std::vector<TableInput> kinds = {};
  std::vector<std::string> categories = {};  ///< CsvValue::text of the one; else empty
  /// Empty cells, and categories that training rows had not: "error", or "mean" and "column"
  std::string missing = "error";
  /// The model gives (target - mean) / deviation
  double target_mean = 0.0, target_deviation = 1.0;

  std::size_t inputs() const { return names.size(); }
  void add(const std::string& column, TableInput kind, const std::string& category = {});
  /// Each column once, in order.
  std::vector<std::string> columns() const;
  /// A raw number of an input, as the model takes it.
  double normalized(std::size_t input, double number) const;
};

/// Rows as a model takes them.
struct TableRows {
  std::vector<float> numbers;      ///< one row after another
  std::vector<std::int64_t> rows;  ///< their numbers in the file, as CsvFile counts
};
/// Reads a CSV file; `-`, and what is no regular file, as a stream.
TableRows read_rows(const std::string& path, const TableColumns& columns);

}  // namespace starling
