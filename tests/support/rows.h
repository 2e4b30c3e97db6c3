#pragma once

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace starling::test {

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

inline std::vector<nlohmann::json> json_lines(const std::string& text) {
  std::vector<nlohmann::json> values;
  for (const std::string& line : lines_of(text)) values.push_back(nlohmann::json::parse(line));
  return values;
}

/// What stands between the separators.
inline std::vector<std::string> parts_of(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find(separator, begin)) != std::string::npos;
       begin = end + separator.size())
    parts.push_back(text.substr(begin, end - begin));
  parts.push_back(text.substr(begin));
  return parts;
}

/// The rows of a table: lines that are not empty, each of parts between " | ". A line that ends in
/// " | @: a ; b" stands for two rows, with a and with b in place of every @.
inline std::vector<std::vector<std::string>> rows_of(const std::string& table) {
  std::vector<std::vector<std::string>> rows;
  for (const std::string& line : lines_of(table)) {
    if (line.empty()) continue;
    const std::size_t end = line.rfind(" | @: ");
    if (end == std::string::npos) {
      rows.push_back(parts_of(line, " | "));
      continue;
    }
    for (const std::string& value : parts_of(line.substr(end + 6), " ; ")) {
      std::string row;
      for (const char c : line.substr(0, end)) row += c == '@' ? value : std::string(1, c);
      rows.push_back(parts_of(row, " | "));
    }
  }
  return rows;
}

}  // namespace starling::test
