#include <charconv>
#include <nlohmann/json.hpp>
#include <regex>

#include "core/config.h"
#include "core/error.h"
#include "core/text.h"

namespace starling {

namespace {

using nlohmann::json;

[[noreturn]] void refuse(std::string_view path, std::string_view message) {
  throw Error(ExitCode::kUsage,
              {"config", std::string(message), {}, {.key = "--set " + shown(path, 100)}});
}

/// JSON where it parses, else the text itself. What starts like an object or a list was meant as
/// one, and what is a number that nobody can hold as one, so its error is shown.
json parse_value(const std::string& text, std::string_view path) {
  try {
    return parse_json(text, fmt::format("--set {}", shown(path, 100)));
  } catch (const Error&) {
    static const std::regex number(R"(-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?)");
    if (text.starts_with('{') || text.starts_with('[') ||
        (text.size() < 1000 && std::regex_match(text, number)))
      throw;
    return text;
  }
}

std::string_view kind_of(const json& value) {
  if (value.is_string()) return "a string";
  if (value.is_number()) return "a number";
  if (value.is_boolean()) return "true or false";
  return "no object";
}

}  // namespace

void apply_setting(json& config, const std::string& setting) {
  const std::size_t equals = setting.find('=');
  if (equals == std::string::npos) refuse(setting, "no '=' in it; expected key.path=value");
  const std::string_view path = std::string_view(setting).substr(0, equals);
  if (path.empty()) refuse(setting, "no key before '='; expected key.path=value");
  const json value = parse_value(setting.substr(equals + 1), path);

  // Walked on a copy, so that an error leaves the config as it was.
  json result = config.is_null() ? json::object() : config;
  json* at = &result;
  std::size_t begin = 0;
  for (int depth = 0;; ++depth) {
    if (depth == 32) refuse(path, "the path has more than 32 parts");
    const std::size_t dot = path.find('.', begin);
    const std::string_view part =
        path.substr(begin, dot == std::string_view::npos ? std::string_view::npos : dot - begin);
    const std::string_view parent = begin == 0 ? "the config" : path.substr(0, begin - 1);
    if (part.empty()) refuse(path, "a part of the path is empty; expected key.path=value");
    if (at->is_null()) *at = json::object();
    if (at->is_array()) {
      std::size_t index = 0;
      const auto [end, fault] = std::from_chars(part.data(), part.data() + part.size(), index);
      if (fault != std::errc() || end != part.data() + part.size() || index >= at->size()) {
        const std::string allowed =
            at->empty() ? "an empty list"
                        : fmt::format("a list; expected an index from 0 to {}", at->size() - 1);
        refuse(path,
               fmt::format("'{}' is {}, found '{}'", shown(parent, 60), allowed, shown(part, 60)));
      }
      at = &(*at)[index];
    } else if (at->is_object()) {
      at = &(*at)[std::string(part)];
    } else {
      refuse(path, fmt::format("'{}' is {}, so it has no '{}'; an object is needed there",
                               shown(parent, 60), kind_of(*at), shown(part, 60)));
    }
    if (dot == std::string_view::npos) break;
    begin = dot + 1;
  }
  *at = value;
  config = std::move(result);
}

}  // namespace starling
