#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "apps/inference/table.h"
#include "core/csv.h"

namespace starling {

/// Reads the rows of a file as inputs, its columns by name, in any order and among any others.
/// Error(kUsage) names file, row and column.
class TableReader {
 public:
  /// `why`: what errors say of columns that the file has not.
  TableReader(const CsvFile& file, const TableColumns& columns, const std::string& why);
  /// Adds the raw numbers of the row that the file stands at; missing ones are NaN.
  void read_row(std::vector<double>& numbers);
  /// Warns of the categories that were read and that the columns do not have.
  void tell_unknown() const;

 private:
  struct Column {
    std::size_t place = 0;                     ///< in the file
    std::size_t first = 0, end = 0;            ///< inputs
    bool number = false;                       ///< it has an input of that kind
    std::map<std::string, std::size_t> known;  ///< inputs by category
    std::int64_t unknown_cells = 0;
    std::string unknown;  ///< the first
  };
  [[noreturn]] void refuse(const Column& column, const CsvValue& value) const;

  const CsvFile& file_;
  const TableColumns& columns_;
  std::vector<Column> places_;
};

}  // namespace starling
