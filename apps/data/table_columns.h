#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/inference/table.h"
#include "core/csv.h"

namespace starling {

/// The config's settings for a table's columns.
struct TableKeys {
  std::string target;
  std::vector<std::string> categories, ignore;
  std::int64_t max_categories = 100;
  std::string missing = "error";
};

/// Determines the inputs of a table's columns, not normalised, and lines for the user on the
/// decisions. A column is numeric (booleans are 1 and 0) or text, i.e. categories. A column with
/// both, or with texts that begin like numbers, is numeric, so that reading it reports the cell.
/// Columns without a name are left out. Reads the whole file.
TableColumns find_columns(CsvFile& file, const TableKeys& keys, std::string& contents);

/// The class names of a column, sorted by byte. Of several spellings of a class (1 and 1.0, True
/// and TRUE) the first is used, with a message; names that look alike are reported too.
/// Error(kUsage) names the row of an empty cell.
std::vector<std::string> find_classes(CsvFile& file, std::size_t column);

/// Sets means and deviations (divisor n) over the training rows. `numbers`: the inputs of each row
/// of `file`. Error(kUsage) with the column if it has no number, or values are too large.
void measure_columns(TableColumns& columns, const std::vector<double>& numbers,
                     const std::vector<std::int64_t>& rows, const std::string& file);
/// The same for targets.
void measure_target(TableColumns& columns, const std::vector<double>& targets,
                    const std::vector<std::int64_t>& rows, const std::string& file);

}  // namespace starling
