#include "core/config_doc.h"

#include <fmt/format.h>

#include <set>

namespace starling {

namespace {

std::string cell(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '|') {
      result += "\\|";
    } else if (c == '\n' || c == '\r') {
      result += ' ';
    } else if (c == '<') {
      result += "&lt;";
    } else {
      result += c;
    }
  }
  return result;
}

/// A text as code; inside it only the table's own separator needs care.
std::string code(std::string_view text) {
  if (text.empty()) return {};
  std::string result = "`";
  for (const char c : text) {
    if (c == '|') {
      result += "\\|";
    } else {
      result += c == '\n' || c == '\r' || c == '`' ? ' ' : c;
    }
  }
  return result + "`";
}

}  // namespace

std::string config_markdown(std::string_view title, const std::vector<ConfigKey>& keys) {
  std::string result = fmt::format(
      "## {}\n\n| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n", title);
  std::set<std::string> listed;
  for (const ConfigKey& key : keys) {
    if (!listed.insert(key.path).second) continue;
    const std::string fallback =
        key.default_text == "required" ? "required" : code(key.default_text);
    result += fmt::format("| {} | {} | {} | {} | {} |\n", code(key.path), cell(key.type), fallback,
                          cell(key.allowed), cell(key.doc));
  }
  return result;
}

}  // namespace starling
