#include "core/config.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/registry.h"
#include "core/text.h"

namespace starling {

using nlohmann::json;

namespace {

/// True for a number that is neither zero nor normal: processors are told to take such numbers for
/// zero, so what computes would not know the value that was given. Looks at the bits, as a
/// comparison may be told the same.
bool is_tiny(double value) {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(value) << 1;  // without the sign
  return bits != 0 && bits < std::bit_cast<std::uint64_t>(std::numeric_limits<double>::min()) << 1;
}

/// A value as an error shows it: its kind where that is the point, and a short form of itself.
std::string found_text(const json& value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>()))
    return "a number that is not finite";
  if (value.is_number_float() && is_tiny(value.get<double>())) {
    return value.dump() + ", which is too small to compute with (0, or at least 2.3e-308)";
  }
  const std::string text = shown(value.dump(-1, ' ', false, json::error_handler_t::replace), 60);
  if (value.is_string()) return "the string " + text;
  if (value.is_object()) return "the object " + text;
  if (value.is_array()) return "the list " + text;
  return text;
}

std::string with_range(std::string_view what, const Range& range) {
  const std::string text = range.text();
  return fmt::format("{}{}{}", what, text.empty() ? "" : " ", text);
}

std::string joined(const std::vector<std::string>& words, std::string_view separator) {
  std::string result;
  for (const std::string& word : words) {
    if (!result.empty()) result += separator;
    result += shown(word);
  }
  return result;
}

/// The integer that a JSON number stands for (3, 3.0 and 3e0 alike), if it is one that 64 bits
/// hold.
std::optional<std::int64_t> as_integer(const json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  if (!(number >= -0x1p63 && number < 0x1p63) || number != std::floor(number)) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

/// What a required key reads as in a description.
double placeholder(const Range& range) {
  for (const double value : {1.0, 0.0, range.min, range.max}) {
    if (range.contains(value)) return value;
  }
  return range.min + (range.max - range.min) / 2;
}
std::int64_t integer_placeholder(const Range& range) {
  return static_cast<std::int64_t>(std::ceil(placeholder(range)));
}

}  // namespace

// ---------------------------------------------------------------- Range

bool Range::contains(double value) const {
  if (!std::isfinite(value) || is_tiny(value)) return false;
  return (open_min ? value > min : value >= min) && (open_max ? value < max : value <= max);
}

std::string Range::text() const {
  const bool lower = std::isfinite(min), upper = std::isfinite(max);
  if (lower && upper && !open_min && !open_max) return fmt::format("{} … {}", min, max);
  std::string result;
  if (lower) result = fmt::format("{} {}", open_min ? ">" : ">=", min);
  if (upper) result += fmt::format("{}{} {}", lower ? " and " : "", open_max ? "<" : "<=", max);
  return result;
}

// ---------------------------------------------------------------- the tree of sections

struct ConfigSection::Node {
  struct Entry {
    ConfigKey key;
    std::string name;
    // Null: left out of the resolved config, unless it has children
    json value;
    std::shared_ptr<Node> object;              // of section()
    std::vector<std::shared_ptr<Node>> items;  // of sections()
    bool is_list = false;
    bool of_type = false;
  };
  struct Tree {
    std::string source;
    Hint hint;
    bool describing = false;
  };
  std::shared_ptr<Tree> tree;
  json given = json::object();
  std::string path;
  std::string its_type;  // with the keys of the others, where the section is of a type
  OtherTypes others;
  bool marks_type_keys = false;
  json instead;                // a text that is no object; its first key says what is meant
  std::vector<Entry> entries;  // in the order of declaration
  std::vector<std::pair<std::string, json>> overrides;

  std::string path_of(const std::string& key) const {
    const std::string name = shown(key, 64);
    if (path.empty() || key.empty()) return path.empty() ? name : path;
    return path + "." + name;
  }
  /// The value the user gave; null where there is none.
  const json* find(const std::string& key) const {
    const auto it = given.find(key);
    return it == given.end() ? nullptr : &*it;
  }
  Entry* entry(const std::string& key) {
    const auto it =
        std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.name == key; });
    return it == entries.end() ? nullptr : &*it;
  }
  std::shared_ptr<Node> child(std::string its_path) const {
    auto node = std::make_shared<Node>();
    node->tree = tree;
    node->path = std::move(its_path);
    return node;
  }
  bool describing() const { return tree->describing; }
  /// A key asked for again keeps its place, and its text where it has one.
  Entry& declare(const std::string& key, std::string type, std::string fallback,
                 std::string allowed, const std::string& doc) {
    if (!instead.is_null())
      wrong({}, fmt::format(R"(an object, e.g. {{"{}": "..."}})", key), instead);
    Entry* known = entry(key);
    if (!known) {
      entries.emplace_back();
      known = &entries.back();
      known->name = key;
      known->of_type = marks_type_keys;
    }
    if (known->key.doc.empty())
      known->key = {path_of(key), std::move(type), std::move(fallback), std::move(allowed), doc};
    return *known;
  }
  ErrorPlace place(const std::string& key) const {
    return {.file = shown(tree->source, 200), .key = path_of(key)};
  }
  template <class... Args>
  [[noreturn]] void error(const std::string& key, fmt::format_string<Args...> format,
                          Args&&... args) const {
    fail(ExitCode::kUsage, "config", place(key), format, std::forward<Args>(args)...);
  }
  [[noreturn]] void missing(const std::string& key, const std::string& expected,
                            const std::string& other = {}) const {
    // A misspelt required key would otherwise only be noticed after this one.
    std::vector<std::string> unknown;
    for (const auto& [name, value] : given.items()) {
      if (std::none_of(entries.begin(), entries.end(),
                       [&, &given_name = name](const Entry& e) { return e.name == given_name; }))
        unknown.push_back(name);
    }
    std::string near = suggestion(key, unknown);
    if (near.empty()) near = suggestion(other, unknown);
    std::string there;
    if (given.contains(other)) {
      there = fmt::format(" ({} is {})", other, found_text(given.at(other)));
    } else if (!near.empty()) {
      const std::size_t quote = near.find('\'');
      there = fmt::format(" ({} stands there, unknown)",
                          near.substr(quote, near.rfind('\'') + 1 - quote));
    }
    error(key, "is required and missing{}; expected {}", there, expected);
  }
  [[noreturn]] void wrong(const std::string& key, const std::string& expected,
                          const json& found) const {
    error(key, "expected {}, found {}", expected, found_text(found));
  }
  /// A text may be a number that is not written as JSON has it: "0.1", .1, 010, 0x10.
  [[noreturn]] void no_number(const std::string& key, const std::string& expected,
                              const json& found) const {
    const std::string text = found.is_string() ? found.get<std::string>() : "";
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !std::isfinite(number)) wrong(key, expected, found);
    error(key, "expected {}, found {}; a number is not quoted, and written as in JSON: {}",
          expected, found_text(found), number);
  }
  /// Refuses what is no text: what looks like a number on a command line may be meant as one.
  [[noreturn]] void no_text(const std::string& key, const std::string& expected,
                            const json& found) const {
    const std::string name = path.empty() ? key : path + "." + key;
    if (!found.is_number() && !found.is_boolean()) wrong(key, expected, found);
    error(key, "expected {}, found {}; a text is quoted: \"{}\", and with --set: '{}=\"{}\"'",
          expected, found_text(found), found.dump(), name, found.dump());
  }

  double read_number(const std::string& key, const json& value, const Range& range,
                     const std::string& expected) const {
    if (!value.is_number() || !range.contains(value.get<double>())) no_number(key, expected, value);
    return value.get<double>();
  }
  std::int64_t read_integer(const std::string& key, const json& value, const Range& range,
                            const std::string& expected) const {
    const auto number = as_integer(value);
    if (!number || !range.contains(static_cast<double>(*number))) no_number(key, expected, value);
    return *number;
  }
  /// Declares a key and gives its value, as `read` makes it of what the user gave; else the
  /// fallback. A key without one is required, and where there is no input it is the placeholder.
  template <class T, class Read>
  T take(const std::string& key, const char* type, const std::optional<T>& fallback,
         const std::string& allowed, const std::string& expected, const std::string& doc,
         const Read& read, const std::function<T()>& placeholder = {}) {
    Entry& entry = declare(key, type, fallback ? json(*fallback).dump() : "required", allowed, doc);
    const json* value = find(key);
    if (!value && !fallback && !describing()) missing(key, expected);
    T result = value ? read(*value) : fallback ? *fallback : placeholder();
    entry.value = result;
    return result;
  }
  double take_number(const std::string& key, std::optional<double> fallback, const Range& range,
                     const std::string& doc) {
    const std::string expected = with_range("a number", range);
    return take<double>(
        key, "number", fallback, range.text(), expected, doc,
        [&](const json& value) { return read_number(key, value, range, expected); },
        [&] { return placeholder(range); });
  }
  std::int64_t take_integer(const std::string& key, std::optional<std::int64_t> fallback,
                            const Range& range, const std::string& doc,
                            std::optional<std::int64_t> sample = std::nullopt) {
    const std::string expected = with_range("an integer", range);
    return take<std::int64_t>(
        key, "integer", fallback, range.text(), expected, doc,
        [&](const json& value) { return read_integer(key, value, range, expected); },
        [&] { return sample.value_or(integer_placeholder(range)); });
  }
  /// A list, whose bad values are named by the list: those of which `read` makes nothing.
  template <class T, class Read>
  std::vector<T> take_list(const std::string& key, const char* type, const std::vector<T>& fallback,
                           const std::string& allowed, const std::string& expected,
                           const std::string& doc, const Read& read) {
    return take<std::vector<T>>(key, type, fallback, allowed, expected, doc, [&](const json& list) {
      if (!list.is_array()) wrong(key, expected, list);
      std::vector<T> result;
      for (const json& item : list) {
        const std::optional<T> value = read(item);
        if (!value) {
          error(key, "expected {}, found {} as item {} of {}", expected, found_text(item),
                result.size() + 1, list.size());
        }
        result.push_back(*value);
      }
      return result;
    });
  }
  /// Two integers, or one that stands for both; as short as that is said.
  std::vector<std::int64_t> take_pair(const std::string& key,
                                      const std::optional<std::vector<std::int64_t>>& fallback,
                                      const Range& range, const std::string& doc) {
    const std::string expected = with_range("an integer or a list of two, each", range);
    const auto read = [&](const json& value) {
      if (value.is_array() && value.size() != 2) wrong(key, expected, value);
      std::vector<std::int64_t> numbers;
      for (int i = 0; i < 2; ++i)
        numbers.push_back(read_integer(key, value.is_array() ? value[i] : value, range, expected));
      return numbers;
    };
    auto result = take<std::vector<std::int64_t>>(
        key, "integer or list of two", fallback, range.text(), expected, doc, read,
        [&] { return std::vector<std::int64_t>(2, integer_placeholder(range)); });
    Entry& own = *entry(key);
    if (fallback && fallback->front() == fallback->back())
      own.key.default_text = json(fallback->front()).dump();
    if (!fallback && describing()) own.value = result.front();
    return result;
  }
};

ConfigSection::ConfigSection(const json& value, std::string source, Hint hint)
    : node_(std::make_shared<Node>()) {
  node_->tree = std::make_shared<Node::Tree>(Node::Tree{std::move(source), std::move(hint)});
  if (!value.is_object()) node_->wrong({}, "an object, {…}, at the top", value);
  node_->given = value;
}

ConfigSection ConfigSection::describe(const json& given) {
  ConfigSection result(given, "description");
  result.node_->tree->describing = true;
  return result;
}
ConfigSection ConfigSection::describe() { return describe(json::object()); }

ConfigSection ConfigSection::described_by(const std::function<void(ConfigSection&)>& read) {
  ConfigSection result = describe();
  try {
    read(result);
  } catch (const Error&) {  // all is declared by then
  }
  return result;
}

// ---------------------------------------------------------------- values

double ConfigSection::number(const std::string& key, double fallback, Range range,
                             const std::string& doc) {
  return node_->take_number(key, fallback, range, doc);
}
double ConfigSection::required_number(const std::string& key, Range range, const std::string& doc) {
  return node_->take_number(key, {}, range, doc);
}

std::int64_t ConfigSection::integer(const std::string& key, std::int64_t fallback, Range range,
                                    const std::string& doc) {
  return node_->take_integer(key, fallback, range, doc);
}
std::int64_t ConfigSection::required_integer(const std::string& key, Range range,
                                             const std::string& doc,
                                             std::optional<std::int64_t> sample) {
  return node_->take_integer(key, {}, range, doc, sample);
}

std::optional<double> ConfigSection::number_if_given(const std::string& key, Range range,
                                                     const std::string& doc) {
  if (has(key)) return required_number(key, range, doc);
  node_->declare(key, "number", "required", range.text(), doc);
  return std::nullopt;
}
std::optional<std::int64_t> ConfigSection::integer_if_given(const std::string& key, Range range,
                                                            const std::string& doc) {
  if (has(key)) return required_integer(key, range, doc);
  node_->declare(key, "integer", "required", range.text(), doc);
  return std::nullopt;
}

bool ConfigSection::boolean(const std::string& key, bool fallback, const std::string& doc) {
  return node_->take<bool>(key, "boolean", fallback, {}, {}, doc, [&](const json& value) {
    if (!value.is_boolean()) node_->wrong(key, "true or false", value);
    return value.get<bool>();
  });
}

std::string ConfigSection::text(const std::string& key, const std::string& fallback,
                                const std::string& doc) {
  return node_->take<std::string>(key, "text", fallback, {}, {}, doc, [&](const json& value) {
    if (!value.is_string()) node_->no_text(key, "a string", value);
    return value.get<std::string>();
  });
}

std::string ConfigSection::required_text(const std::string& key, const std::string& doc) {
  const auto read = [&](const json& value) {
    if (!value.is_string() || value.get_ref<const std::string&>().empty())
      node_->no_text(key, "a string that is not empty", value);
    return value.get<std::string>();
  };
  return node_->take<std::string>(key, "text", {}, {}, "a string", doc, read, [] { return "…"; });
}

std::string ConfigSection::choice(const std::string& key, const std::string& fallback,
                                  const std::vector<std::string>& options, const std::string& doc) {
  const std::string all = joined(options, ", ");
  return node_->take<std::string>(key, "text", fallback, all, {}, doc, [&](const json& value) {
    if (!value.is_string()) node_->wrong(key, "one of " + all, value);
    auto result = value.get<std::string>();
    if (std::find(options.begin(), options.end(), result) == options.end()) {
      node_->error(key, "unknown value '{}'{}; allowed: {}", shown(result, 60),
                   suggestion(result, options), all);
    }
    return result;
  });
}

std::vector<double> ConfigSection::numbers(const std::string& key,
                                           const std::vector<double>& fallback, Range range,
                                           const std::string& doc) {
  return node_->take_list<double>(key, "list of numbers", fallback, range.text(),
                                  with_range("a list of numbers", range), doc,
                                  [&](const json& item) -> std::optional<double> {
                                    if (!item.is_number() || !range.contains(item.get<double>()))
                                      return std::nullopt;
                                    return item.get<double>();
                                  });
}

std::vector<std::int64_t> ConfigSection::integers(const std::string& key,
                                                  const std::vector<std::int64_t>& fallback,
                                                  Range range, const std::string& doc) {
  return node_->take_list<std::int64_t>(
      key, "list of integers", fallback, range.text(), with_range("a list of integers", range), doc,
      [&](const json& item) {
        const auto number = as_integer(item);
        return number && range.contains(static_cast<double>(*number)) ? number : std::nullopt;
      });
}

std::vector<std::string> ConfigSection::texts(const std::string& key,
                                              const std::vector<std::string>& fallback,
                                              const std::string& doc) {
  return node_->take_list<std::string>(key, "list of texts", fallback, {}, "a list of strings", doc,
                                       [](const json& item) -> std::optional<std::string> {
                                         if (!item.is_string()) return std::nullopt;
                                         return item.get<std::string>();
                                       });
}

std::vector<std::int64_t> ConfigSection::pair(const std::string& key,
                                              std::vector<std::int64_t> fallback, Range range,
                                              const std::string& doc) {
  if (fallback.size() == 1) fallback.push_back(fallback.front());
  require(fallback.size() == 2, "config", "the default of {} has {} values, a pair has two",
          path(key), fallback.size());
  return node_->take_pair(key, fallback, range, doc);
}
std::vector<std::int64_t> ConfigSection::required_pair(const std::string& key, Range range,
                                                       const std::string& doc) {
  return node_->take_pair(key, {}, range, doc);
}

double ConfigSection::number_or_word(const std::string& key, double fallback, Range range,
                                     const std::vector<std::string>& words, std::string& word,
                                     const std::string& doc) {
  const std::string quoted = fmt::format("\"{}\"", joined(words, "\", \"")),
                    number = with_range("a number", range),
                    allowed = range.text().empty() ? quoted : range.text() + ", or " + quoted;
  const json result = node_->take<json>(
      key, "number or text", json(fallback), allowed, {}, doc, [&](const json& value) {
        if (!value.is_string())
          return json(node_->read_number(key, value, range, number + ", or " + quoted));
        const std::string found = value.get<std::string>();
        if (std::find(words.begin(), words.end(), found) == words.end()) {
          node_->error(key, "expected {}, or {}, found the string '{}'{}", number, quoted,
                       shown(found, 60), suggestion(found, words));
        }
        return value;
      });
  word = result.is_string() ? result.get<std::string>() : "";
  return result.is_string() ? 0.0 : result.get<double>();
}

// ---------------------------------------------------------------- nested objects

ConfigSection ConfigSection::section(const std::string& key, const std::string& doc,
                                     const std::string& shorthand) {
  auto& entry = node_->declare(key, shorthand.empty() ? "object" : "object or text", {}, {}, doc);
  if (entry.object) return ConfigSection(entry.object);
  auto child = node_->child(node_->path_of(key));
  const json* value = node_->find(key);
  if (value && value->is_string() && !shorthand.empty()) {
    child->given = {{shorthand, *value}};
  } else if (value && !value->is_null()) {
    if (!value->is_object() && !value->is_string()) node_->wrong(key, "an object, {…}", *value);
    (value->is_object() ? child->given : child->instead) = *value;
  }
  entry.object = child;
  return ConfigSection(std::move(child));
}

std::optional<ConfigSection> ConfigSection::optional_section(const std::string& key,
                                                             const std::string& doc) {
  if (has(key) || node_->describing()) return section(key, doc);
  node_->declare(key, "object", {}, {}, doc);
  return std::nullopt;
}

std::vector<ConfigSection> ConfigSection::sections(const std::string& key, bool needed,
                                                   const std::string& doc, bool lists,
                                                   std::string_view sample) {
  auto& entry = node_->declare(key, lists ? "list of lists of objects" : "list of objects",
                               needed ? "required" : "[]", {}, doc);
  if (!entry.is_list) {
    const json* value = node_->find(key);
    const bool given = value && !value->is_null();
    const std::string expected = lists ? R"(a list of lists, [[{"type": "..."}, …], …])"
                                       : R"(a list of objects, [{"type": "..."}, …])";
    if (!given && node_->describing() && !sample.empty()) resolve(key, json::parse(sample));
    if (needed && !given && !node_->describing()) node_->missing(key, expected);
    if (given && !value->is_array()) node_->wrong(key, expected, *value);
    if (needed && given && value->empty()) node_->wrong(key, expected + ", at least one", *value);
    std::vector<std::shared_ptr<Node>> items;
    for (std::size_t i = 0; given && i < value->size(); ++i) {
      auto item = node_->child(fmt::format("{}[{}]", node_->path_of(key), i));
      if (lists ? !(*value)[i].is_array() : !(*value)[i].is_object())
        item->wrong({}, lists ? "a list" : R"(an object, e.g. {"type": "..."})", (*value)[i]);
      item->given = lists ? json{{"", (*value)[i]}} : (*value)[i];
      items.push_back(std::move(item));
    }
    entry.items = std::move(items);
    entry.is_list = true;
  }
  std::vector<ConfigSection> result;
  for (const auto& item : entry.items) result.push_back(ConfigSection(item));
  return result;
}

json ConfigSection::raw(const std::string& key, const std::string& type, const std::string& doc,
                        std::string_view sample) {
  auto& entry = node_->declare(key, type, {}, {}, doc);
  const json* value = node_->find(key);
  if (value && value->is_array() && value->empty() && type.find("list") != std::string::npos)
    node_->wrong(key, "a " + type + " that is not empty", *value);
  entry.value = value                                    ? *value
                : node_->describing() && !sample.empty() ? json::parse(sample)
                                                         : json();
  return entry.value;
}

bool ConfigSection::has(const std::string& key) const {
  const json* value = node_->find(key);
  return value && !value->is_null();
}

bool ConfigSection::changed(const std::string& key) const {
  const Node::Entry* entry = node_->entry(key);
  return entry && entry->value.dump() != entry->key.default_text;
}

void ConfigSection::resolve(const std::string& key, const json& value) {
  node_->overrides.emplace_back(key, value);
}

std::string ConfigSection::path(const std::string& key) const { return node_->path_of(key); }

ErrorPlace ConfigSection::place(const std::string& key) const { return node_->place(key); }

void ConfigSection::missing(const std::string& key, const std::string& expected,
                            const std::string& other) const {
  node_->missing(key, expected, other);
}

void ConfigSection::set_type(const std::string& type, OtherTypes others) {
  node_->its_type = type;
  node_->others = std::move(others);
}

void ConfigSection::mark_as_type_keys(bool on) { node_->marks_type_keys = on; }

void ConfigSection::finish() const {
  if (!node_->instead.is_null()) node_->wrong({}, "an object, {…}", node_->instead);
  if (node_->describing() && node_->path.empty())
    throw Error(ExitCode::kUsage, {"config", "the end of a description"});
  std::vector<std::string> known, unknown;
  for (const auto& entry : node_->entries) known.push_back(entry.name);
  for (const auto& [key, value] : node_->given.items()) {
    if (!node_->entry(key)) unknown.push_back(key);
  }
  if (unknown.empty()) return;
  const auto others =
      node_->others ? node_->others() : std::vector<std::pair<std::string, std::string>>();
  const auto owners = [&](const std::string& key) {
    std::vector<std::string> types;
    for (const auto& [type, name] : others) {
      if (name == key) types.push_back(type);
    }
    return joined(types, ", ");
  };
  for (const std::string& key : unknown) {
    if (const std::string types = owners(key); !types.empty())
      node_->error(key, "is not a key of {}, but of {}", node_->its_type, types);
  }
  const auto near = [&](const std::string& key) {
    const Hint& hint = node_->tree->hint;
    std::string text = hint ? hint(node_->path, key, node_->given.at(key)) : "";
    if (text.empty()) text = suggestion(key, known);
    if (!text.empty()) return text;
    std::vector<std::string> names;
    for (const auto& [type, name] : others) names.push_back(name);
    const std::string other = nearest(key, names);
    return other.empty() ? "" : fmt::format("; did you mean '{}' of {}?", other, owners(other));
  };
  // A key that is misspelt comes first: others may belong to what it was to name.
  std::string first = unknown.front(), text;
  for (std::size_t k = 0; k < unknown.size() && text.empty(); ++k) {
    text = near(unknown[k]);
    if (!text.empty()) first = unknown[k];
  }
  node_->error(first, "unknown key{}; {}", text,
               known.empty() ? "no keys are known here" : "known: " + joined(known, ", "));
}

json ConfigSection::resolved() const {
  json result = json::object();
  for (const auto& entry : node_->entries) {
    if (entry.object) {
      result[entry.name] = ConfigSection(entry.object).resolved();
    } else if (entry.is_list) {
      json& list = result[entry.name] = json::array();
      for (const auto& item : entry.items) list.push_back(ConfigSection(item).resolved());
      if (entry.name.empty()) return json(list);  // of a list of lists
    } else if (!entry.value.is_null()) {
      result[entry.name] = entry.value;
    }
  }
  for (const auto& [key, value] : node_->overrides) {
    if (value.is_null()) {
      result.erase(key);
    } else {
      result[key] = value;
    }
  }
  return result;
}

std::vector<ConfigKey> ConfigSection::declared() const {
  std::vector<ConfigKey> result;
  const auto append = [&result](const std::shared_ptr<Node>& node) {
    const std::vector<ConfigKey> keys = ConfigSection(node).declared();
    result.insert(result.end(), keys.begin(), keys.end());
  };
  for (const auto& entry : node_->entries) {
    if (entry.of_type) continue;
    result.push_back(entry.key);
    if (entry.object) append(entry.object);
    for (const auto& item : entry.items) append(item);
  }
  return result;
}

}  // namespace starling
