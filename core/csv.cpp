#include "core/csv.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/file_io.h"
#include "core/registry.h"
#include "core/text.h"

namespace starling {
namespace {

std::string whole_file(const std::string& path, const std::string& key) {
  const RegularFile file(path);
  if (!file.fault().empty())
    fail(ExitCode::kUsage, "data", {.key = key}, "cannot open {}: {}", path, file.fault());
  std::string text(static_cast<std::size_t>(file.bytes()), '\0');
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t got = ::read(file.descriptor(), text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      fail(ExitCode::kUsage, "data", "cannot read {}: {}", path,
           got < 0 ? std::strerror(errno) : "it was shortened meanwhile");
    done += static_cast<std::size_t>(got);
  }
  return text;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

}  // namespace

CsvFile CsvFile::read(const std::string& path, const std::string& key) {
  return {path, whole_file(path, key)};
}

CsvFile::CsvFile(std::string name, std::string text)
    : name_(std::move(name)), text_(std::move(text)) {
  if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;
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
  names_ = cells_;
  for (std::size_t c = 0; c < names_.size(); ++c) {
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
  if (const std::size_t end = line_end(at_)) return at_ += end, false;
  for (;;) {
    std::string& cell = cells_.emplace_back();
    if (at_ < text.size() && text[at_] == '"') {
      for (++at_;; ++at_) {
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
  std::string_view text = trimmed(cells_[column]);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    refuse(column, needed);
  return value;
}

void CsvFile::refuse(std::size_t column, const char* needed) const {
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
