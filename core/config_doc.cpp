#include "core/config_doc.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "core/text.h"

namespace starling {

namespace {

/// A text for a table, whose own separator is escaped; `also`: characters that become blanks,
/// `less` what stands for '<'.
std::string cell(std::string_view text, const char* also = "\n\r", const char* less = "&lt;") {
  std::string result;
  for (const char c : text) {
    const bool blank = std::string_view(also).find(c) != std::string_view::npos;
    result += c == '|' ? "\\|" : c == '<' ? less : std::string(1, blank ? ' ' : c);
  }
  return result;
}

/// A text as code.
std::string code(std::string_view text) {
  return text.empty() ? "" : "`" + cell(text, "\n\r`", "<") + "`";
}

/// The value with a blank after each separator, in lines of at most 100 columns that begin with
/// `indent` blanks; the first begins at `column`.
std::string sample_text(const nlohmann::ordered_json& value, std::size_t column,
                        std::size_t indent) {
  if (!value.is_structured() || value.empty()) return value.dump();
  std::string text(1, value.is_object() ? '{' : '[');
  ++column;
  for (auto item = value.begin(); item != value.end(); ++item) {
    std::string part = value.is_object() ? nlohmann::json(item.key()).dump() + ": " : "";
    const std::size_t used = part.size();
    const bool first = item == value.begin();
    std::string line = sample_text(*item, 0, indent + 1);
    if (!first && column + used + line.size() + 4 > 100) {
      text += ",\n" + std::string(indent + 1, ' ');
      column = indent + 1;
    } else if (!first) {
      text += ", ";
      column += 2;
    }
    // Too long for a line of its own: broken inside.
    if (column + used + line.size() + 2 > 100) line = sample_text(*item, column + used, indent + 1);
    part += line;
    const std::size_t end = part.rfind('\n');
    column = end == std::string::npos ? column + part.size() : part.size() - end - 1;
    text += part;
  }
  return text + (value.is_object() ? '}' : ']');
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

std::string config_sample(const nlohmann::ordered_json& object) {
  return "```json\n" + sample_text(object, 0, 0) + "\n```";
}

}  // namespace starling
