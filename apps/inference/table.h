#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace starling {

/// Columns of numbers that are a model's inputs: it takes (number - mean) / deviation, and 0 where
/// the deviation is 0.
struct TableColumns {
  std::vector<std::string> names;
  std::vector<double> mean, deviation;
  std::string target;  ///< the column that the model predicts
};

/// A column's number as the model takes it.
inline double normalized_number(double number, double mean, double deviation) {
  return deviation > 0.0 ? (number - mean) / deviation : 0.0;
}

/// Rows as a model takes them.
struct TableRows {
  std::vector<float> numbers;      ///< one row after another
  std::vector<std::int64_t> rows;  ///< their numbers in the file, as CsvFile counts
};
/// Reads a CSV file's columns of these names, in whatever order it has them beside others.
/// Error(kUsage) names file, row and column.
TableRows read_rows(const std::string& path, const TableColumns& columns);

}  // namespace starling
