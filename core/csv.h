#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace starling {

/// The value of a cell, independent of its notation: 0.50, "+5e-1" and ` .5` are the same number.
struct CsvValue {
  enum class Kind : std::uint8_t { kMissing, kNumber, kBoolean, kText } kind = Kind::kMissing;
  /// Finite; 1 for true and yes, 0 for false and no, in upper or lower case
  double number = 0.0;
  /// Canonical text: empty, a number's shortest form (of integers from 2^53 on their digits),
  /// "true", "false", "yes", "no", or the text without surrounding blanks
  std::string text;
  bool rounded = false;  ///< an integer that fp64 may not hold exactly
};
/// Without surrounding blanks, including U+00A0.
std::string_view trimmed(std::string_view text);
/// Empty, blank, NA, N/A, #N/A, <NA>, NaN and null, in upper or lower case, are missing values.
CsvValue csv_value(std::string_view cell);
/// Whether a text that is not a number may be meant as one, or as a date: 1,234 and 0x1p3, inf
bool begins_as_number(std::string_view text);
/// Whether a column has no name: empty, or pandas' placeholder ("Unnamed: 0", or "Unnamed: 0.1" if
/// the table was saved twice)
bool is_unnamed(std::string_view column);

/// A table of texts whose first row has the columns' names, read row by row: RFC 4180, with LF or
/// CR LF; ignores blanks around quotes, a byte order mark and empty lines. Names have no
/// surrounding blanks; several columns may have none. Errors are Error(kUsage) with file, row and
/// column; rows are counted as in spreadsheets: the names are row 1.
class CsvFile {
 public:
  /// Reads a whole file, which must be UTF-8. `key`: the config key of the path, if any. `stream`:
  /// it may be a pipe; `-` is standard input.
  static CsvFile read(const std::string& path, const std::string& key = {}, bool stream = false);
  /// From a text; `name` is used in errors.
  CsvFile(std::string name, std::string text);

  const std::string& name() const { return name_; }  ///< of the file, as errors call it
  const std::vector<std::string>& names() const { return names_; }
  /// The index of a column. Error(kUsage) with `needed_for` if there is none.
  std::size_t column(const std::string& name, const std::string& needed_for) const;

  /// Reads the next row; false at the end.
  bool next();
  /// Back to the first row.
  void rewind();
  std::int64_t row() const { return row_; }
  /// The row's text, without the newline.
  std::string_view line() const { return line_; }
  const std::string& cell(std::size_t column) const { return cells_[column]; }
  /// A cell as a finite number. `needed`: for errors.
  double number(std::size_t column, const char* needed = "a number, such as -1.5e3") const;
  [[noreturn]] void refuse(std::size_t column, std::string_view needed) const;

 private:
  bool read_row();

  std::string name_, text_;
  std::size_t at_ = 0, first_at_ = 0;
  std::int64_t row_ = 0, first_row_ = 0;
  std::vector<std::string> names_, cells_;
  std::string_view line_;
};

/// A text as a cell, quoted if necessary.
std::string csv_cell(const std::string& text);

}  // namespace starling
