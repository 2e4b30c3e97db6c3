#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace starling {

/// What a cell says, however it is written: 0.50, "+5e-1" and ` .5` are the same number.
struct CsvValue {
  enum class Kind : std::uint8_t { kMissing, kNumber, kBoolean, kText } kind = Kind::kMissing;
  /// Finite; 1 for true and yes, 0 for false and no, in capitals or not
  double number = 0.0;
  /// The same of all cells that say the same: empty, a number's shortest form, "true", "false",
  /// "yes", "no", or the text without blanks around it
  std::string text;
};
/// Without blanks around it, U+00A0 among them.
std::string_view trimmed(std::string_view text);
/// Empty, blank, NA, N/A, #N/A, <NA>, NaN and null are missing, in capitals or not.
CsvValue csv_value(std::string_view cell);
/// Whether a text that is no number may have been meant as one, or as a date: 1,234 and 0x1p3, inf
bool begins_as_number(std::string_view text);
/// Whether a column's name is none: empty, or what pandas puts there ("Unnamed: 0", of a
/// table that was saved twice "Unnamed: 0.1")
bool is_unnamed(std::string_view column);

/// A table of texts whose first row has the columns' names, read row by row: RFC 4180, with LF or
/// CR LF, blanks around quotes and a byte order mark passed over. Names are without blanks around
/// them; more than one column may have none. Empty lines are no rows. Errors are Error(kUsage) that
/// name file, row and column; rows count from 1, the names' being the first, as spreadsheets do.
class CsvFile {
 public:
  /// Reads the file whole; it must be UTF-8. `key`: of the config, if it has named the path.
  /// `stream`: it may be a pipe, too; `-` is standard input.
  static CsvFile read(const std::string& path, const std::string& key = {}, bool stream = false);
  /// The same of a text, which errors call `name`.
  CsvFile(std::string name, std::string text);

  const std::string& name() const { return name_; }  ///< of the file, as errors call it
  const std::vector<std::string>& names() const { return names_; }
  /// Which column has a name; Error(kUsage) that says for what it is needed where there is none.
  std::size_t column(const std::string& name, const std::string& needed_for) const;

  /// Goes on to the next row; false at the end.
  bool next();
  /// Goes back to before the first row.
  void rewind();
  std::int64_t row() const { return row_; }
  /// The row as the file has it, without its line's end.
  std::string_view line() const { return line_; }
  const std::string& cell(std::size_t column) const { return cells_[column]; }
  /// A cell as a finite number, blanks around it aside; `needed`: what errors say.
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

/// A text as a cell: in quotes where it needs them.
std::string csv_cell(const std::string& text);

}  // namespace starling
