#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/inference/table.h"
#include "core/csv.h"

namespace starling {

/// What a config says of a table's columns.
struct TableKeys {
  std::string target;
  std::vector<std::string> categories, ignore;
  std::int64_t max_categories = 100;
  std::string missing = "error";
};

/// The inputs that a table's columns become, not normalised yet, and a line for the user on what
/// was decided. A column is of numbers (booleans are 1 and 0) or of texts, which are categories;
/// one that has both, or texts that begin as numbers, is of numbers, and whoever reads it will find
/// the cell. Columns without a name are left out. Reads the file from its first row to the end.
TableColumns find_columns(CsvFile& file, const TableKeys& keys, std::string& contents);

/// Names of a column's classes, sorted by byte: of several spellings of one (1 and 1.0, True and
/// TRUE) the first in that order, which is told, as names that look alike are. Error(kUsage) names
/// the row of an empty cell.
std::vector<std::string> find_classes(CsvFile& file, std::size_t column);

/// Means and deviations (with n below it) of the training rows: `numbers` has so many inputs for
/// each row of `file`. Error(kUsage) names a column without a number, or of too large ones.
void measure_columns(TableColumns& columns, const std::vector<double>& numbers,
                     const std::vector<std::int64_t>& rows, const std::string& file);
/// The same of targets.
void measure_target(TableColumns& columns, const std::vector<double>& targets,
                    const std::vector<std::int64_t>& rows, const std::string& file);

}  // namespace starling
