#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace starling {

/// A table of texts whose first row has the columns' names, read row by row: RFC 4180, with LF or
/// CR LF, and a byte order mark passed over. Empty lines are no rows. Errors are Error(kUsage) that
/// name file, row and column; rows count from 1, the names' being the first, as spreadsheets do.
class CsvFile {
 public:
  /// Reads the file whole; it must be UTF-8. `key`: of the config, if it has named the path.
  static CsvFile read(const std::string& path, const std::string& key = {});
  /// The same of a text, which errors call `name`.
  CsvFile(std::string name, std::string text);

  const std::vector<std::string>& names() const { return names_; }
  /// Which column has a name; Error(kUsage) that says for what it is needed where there is none.
  std::size_t column(const std::string& name, const std::string& needed_for) const;

  /// Goes on to the next row; false at the end.
  bool next();
  std::int64_t row() const { return row_; }
  /// The row as the file has it, without its line's end.
  std::string_view line() const { return line_; }
  const std::string& cell(std::size_t column) const { return cells_[column]; }
  /// A cell as a finite number, blanks around it aside; `needed`: what errors say.
  double number(std::size_t column, const char* needed = "a number, such as -1.5e3") const;
  [[noreturn]] void refuse(std::size_t column, const char* needed) const;

 private:
  bool read_row();

  std::string name_, text_;
  std::size_t at_ = 0;
  std::int64_t row_ = 0;
  std::vector<std::string> names_, cells_;
  std::string_view line_;
};

/// A text as a cell: in quotes where it needs them.
std::string csv_cell(const std::string& text);

}  // namespace starling
