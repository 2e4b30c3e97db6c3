#include "core/csv.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/file_io.h"
#include "core/registry.h"
#include "core/text.h"

namespace starling {
namespace {

/// Whether all of a text is a finite number.
bool read_number(std::string_view text, double& value) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n\v\f", kUnbroken = "\xC2\xA0";
  for (;;) {
    text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
    text = text.substr(0, text.find_last_not_of(kBlanks) + 1);
    if (text.starts_with(kUnbroken)) {
      text.remove_prefix(kUnbroken.size());
    } else if (text.ends_with(kUnbroken)) {
      text.remove_suffix(kUnbroken.size());
    } else {
      return text;
    }
  }
}

CsvValue csv_value(std::string_view cell) {
  using Kind = CsvValue::Kind;
  const std::string_view text = trimmed(cell);
  double number = 0.0;
  if (read_number(text, number)) {
    number += 0.0;  // -0 is 0
    // Long ids are apart by their digits alone
    const bool rounded = std::abs(number) >= 0x1p53 &&
                         text.find_first_not_of("+-0123456789") == std::string_view::npos;
    return {Kind::kNumber, number, rounded ? std::string(text) : fmt::format("{}", number),
            rounded};
  }
  constexpr std::size_t kLongestWord = 5;
  std::string lower = text.size() <= kLongestWord ? lower_case(text) : std::string();
  if (text.empty()) return {};
  for (const char* word : {"na", "n/a", "#n/a", "<na>", "nan", "-nan", "null"}) {
    if (lower == word) return {};
  }
  if (lower == "true" || lower == "yes") return {Kind::kBoolean, 1.0, std::move(lower)};
  if (lower == "false" || lower == "no") return {Kind::kBoolean, 0.0, std::move(lower)};
  return {Kind::kText, 0.0, std::string(text)};
}

bool begins_as_number(std::string_view text) {
  if (!text.empty() && (text[0] == '+' || text[0] == '-')) text.remove_prefix(1);
  const std::string lower = lower_case(text.substr(0, 9));
  if (lower == "inf" || lower == "infinity") return true;
  if (!text.empty() && text[0] == '.') text.remove_prefix(1);
  return !text.empty() && text[0] >= '0' && text[0] <= '9';
}

bool is_unnamed(std::string_view column) {
  constexpr std::string_view kPandas = "Unnamed: ";
  return column.empty() ||
         (column.starts_with(kPandas) && column.size() > kPandas.size() &&
          column.find_first_not_of("0123456789.", kPandas.size()) == std::string_view::npos);
}

CsvFile CsvFile::read(const std::string& path, const std::string& key, bool stream) {
  FileText file =
      stream && path == "-" ? read_rest(STDIN_FILENO) : read_file(path, UINT64_MAX, stream);
  if (!file.fault.empty())
    fail(ExitCode::kUsage, "data", {.key = key}, "cannot open {}: {}", path, file.fault);
  return {path, std::move(file.text)};
}

CsvFile::CsvFile(std::string name, std::string text)
    : name_(std::move(name)), text_(std::move(text)) {
  if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;
  if (text_.starts_with("\x1F\x8B"))
    fail(ExitCode::kUsage, "data", {.file = name_}, "is packed by gzip; unpack it (gunzip)");
  if (text_.find('\n') == std::string::npos && text_.find('\r') != std::string::npos)
    fail(ExitCode::kUsage, "data", {.file = name_},
         "its lines end with CR alone; save the table with LF or CR LF");
  if (!is_utf8(text_)) {
    std::int64_t line = 1;
    for (std::size_t begin = 0, end = 0; begin < text_.size(); begin = end + 1, ++line) {
      end = std::min(text_.find('\n', begin), text_.size());
      if (!is_utf8(std::string_view(text_).substr(begin, end - begin))) break;
    }
    fail(ExitCode::kUsage, "data", {.file = name_}, "line {} is not UTF-8; save the table as UTF-8",
         line);
  }
  if (!next())
    fail(ExitCode::kUsage, "data", {.file = name_},
         "the table is empty; needed: a first row with the columns' names, and rows below it");
  for (const std::string& cell : cells_) names_.emplace_back(trimmed(cell));
  first_at_ = at_;
  first_row_ = row_;
  for (std::size_t c = 0; c < names_.size(); ++c) {
    if (is_unnamed(names_[c])) continue;
    const auto before =
        std::find(names_.begin(), names_.begin() + static_cast<std::ptrdiff_t>(c), names_[c]);
    if (before == names_.begin() + static_cast<std::ptrdiff_t>(c)) continue;
    fail(ExitCode::kUsage, "data", {.file = name_},
         "columns {} and {} have the same name, {}; each needs a name of its own",
         before - names_.begin() + 1, c + 1, told_apart(names_[c]));
  }
}

std::size_t CsvFile::column(const std::string& name, const std::string& needed_for) const {
  const auto it = std::find(names_.begin(), names_.end(), name);
  if (it != names_.end()) return static_cast<std::size_t>(it - names_.begin());
  std::vector<std::string> known;
  for (const std::string& other : names_) known.push_back(told_apart(other));
  // A table of another program's, whose first row was taken for one name.
  const char divider = names_.size() > 1                          ? '\0'
                       : names_[0].find(';') != std::string::npos ? ';'
                                                                  : '\t';
  const bool divided = names_.size() == 1 && names_[0].find(divider) != std::string::npos;
  fail(ExitCode::kUsage, "data", {.file = name_}, "has no column {} ({}); its columns: {}{}",
       told_apart(name), needed_for, shown(fmt::format("{}", fmt::join(known, ", ")), 400),
       divided ? fmt::format("; cells are divided by commas, not by {}",
                             divider == ';' ? "';'" : "tabs")
               : suggestion(name, names_));
}

bool CsvFile::next() {
  while (at_ < text_.size()) {
    ++row_;
    if (!read_row()) continue;
    if (!names_.empty() && cells_.size() != names_.size()) {
      fail(ExitCode::kUsage, "data", {.file = name_}, "row {} has {} cell{}; needed: {}, as names",
           row_, cells_.size(), cells_.size() == 1 ? "" : "s", names_.size());
    }
    return true;
  }
  return false;
}

void CsvFile::rewind() {
  at_ = first_at_;
  row_ = first_row_;
}

/// False where the line is empty.
bool CsvFile::read_row() {
  cells_.clear();
  const std::string_view text = text_;
  const std::size_t begin = at_;
  // 0, or as many characters as the line's end that stands there has
  const auto line_end = [&](std::size_t at) -> std::size_t {
    if (at == text.size() || text[at] == '\n') return 1;
    return text.substr(at, 2) == "\r\n" ? 2 : 0;
  };
  const auto pass_blanks = [&](std::size_t at) {
    return std::min(text.find_first_not_of(" \t", at), text.size());
  };
  if (const std::size_t end = line_end(at_)) return at_ += end, false;
  for (;;) {
    std::string& cell = cells_.emplace_back();
    const std::size_t quoted = pass_blanks(at_);
    if (quoted < text.size() && text[quoted] == '"') {
      for (at_ = quoted + 1;; ++at_) {
        const std::size_t quote = text.find('"', at_);
        if (quote == std::string_view::npos)
          fail(ExitCode::kUsage, "data", {.file = name_},
               "row {}, cell {}: its quote is never closed; needed: \" at its end", row_,
               cells_.size());
        cell += text.substr(at_, quote - at_);
        at_ = quote + 1;
        if (at_ == text.size() || text[at_] != '"') break;
        cell += '"';
      }
      at_ = pass_blanks(at_);
      if (line_end(at_) == 0 && text[at_] != ',')
        fail(ExitCode::kUsage, "data", {.file = name_},
             "row {}, cell {}: text follows its closing quote; needed: a comma or the line's end",
             row_, cells_.size());
    } else {
      const std::size_t from = at_;
      while (line_end(at_) == 0 && text[at_] != ',') ++at_;
      cell = text.substr(from, at_ - from);
    }
    if (const std::size_t end = line_end(at_)) {
      line_ = text.substr(begin, at_ - begin);
      at_ += end;
      return true;
    }
    ++at_;
  }
}

double CsvFile::number(std::size_t column, const char* needed) const {
  double value = 0.0;
  if (!read_number(trimmed(cells_[column]), value)) refuse(column, needed);
  return value;
}

void CsvFile::refuse(std::size_t column, std::string_view needed) const {
  fail(ExitCode::kUsage, "data", {.file = name_}, "row {}, column {}: is {}; needed: {}", row_,
       told_apart(names_[column]),
       cells_[column].empty() ? "empty" : "'" + shown(cells_[column]) + "'", needed);
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

}  // namespace starling
