#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.h"

namespace starling {

/// Range of what a number may be. Non-finite numbers are always refused.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool open_min = false, open_max = false;  ///< the bound itself is not allowed

  static Range any() { return {}; }
  static Range positive() { return {0.0, std::numeric_limits<double>::infinity(), true, false}; }
  static Range at_least(double min) {
    return {min, std::numeric_limits<double>::infinity(), false, false};
  }
  static Range closed(double min, double max) { return {min, max, false, false}; }
  /// [min, max)
  static Range half_open(double min, double max) { return {min, max, false, true}; }
  /// "> 0", ">= 1", "0 … 1"
  std::string text() const;
  bool contains(double value) const;
};

/// One key of a config as the program declared it, for docs/config.md.
struct ConfigKey {
  std::string path, type, default_text, allowed, doc;
};

/// A strict, typed view of one JSON object of the config. Asking for a key declares it: the same
/// call gives the value, notes it in the resolved config, and documents it. finish() refuses keys
/// that nobody asked for. Every error is an Error(kUsage) that gives the key's full path, what was
/// found, what is allowed, and the nearest known name.
///
///     double lr = section.number("lr", 0.1, Range::positive(), "learning rate");
///     ConfigSection schedule = section.section("schedule", "how the learning rate changes");
///     section.finish();
///
/// A description (describe()) is a reading without a config: required keys give their samples,
/// optional objects are there, and all keys asked for are listed. Readers do not see the
/// difference.
class ConfigSection {
 public:
  /// What to say of an unknown key in addition to the known ones, such as "; give optimizer.lr";
  /// empty where there is nothing to say. `section`: the path of the object that has the key.
  using Hint = std::function<std::string(const std::string& section, const std::string& key,
                                         const nlohmann::json& value)>;

  /// The root. `source` names the file in errors. `value` must be a JSON object.
  ConfigSection(const nlohmann::json& value, std::string source, Hint hint = {});
  /// The root of a description. `given`: keys whose values others depend on.
  static ConfigSection describe(const nlohmann::json& given);
  static ConfigSection describe();
  /// What `read` declares, up to an Error: it may refuse the samples of required keys once it has
  /// declared them, and its finish() ends a description.
  static ConfigSection described_by(const std::function<void(ConfigSection&)>& read);

  double number(const std::string& key, double fallback, Range range, const std::string& doc);
  double required_number(const std::string& key, Range range, const std::string& doc);
  std::int64_t integer(const std::string& key, std::int64_t fallback, Range range,
                       const std::string& doc);
  /// `sample`: its value in a description; else the simplest in range.
  std::int64_t required_integer(const std::string& key, Range range, const std::string& doc,
                                std::optional<std::int64_t> sample = std::nullopt);
  /// One of several keys of which one is required; nothing where it is not given.
  std::optional<double> number_if_given(const std::string& key, Range range,
                                        const std::string& doc);
  std::optional<std::int64_t> integer_if_given(const std::string& key, Range range,
                                               const std::string& doc);
  bool boolean(const std::string& key, bool fallback, const std::string& doc);
  std::string text(const std::string& key, const std::string& fallback, const std::string& doc);
  std::string required_text(const std::string& key, const std::string& doc);
  /// One of `options`.
  std::string choice(const std::string& key, const std::string& fallback,
                     const std::vector<std::string>& options, const std::string& doc);
  std::vector<double> numbers(const std::string& key, const std::vector<double>& fallback,
                              Range range, const std::string& doc);
  std::vector<std::int64_t> integers(const std::string& key,
                                     const std::vector<std::int64_t>& fallback, Range range,
                                     const std::string& doc);
  std::vector<std::string> texts(const std::string& key, const std::vector<std::string>& fallback,
                                 const std::string& doc);
  /// An integer or a list of two (height, width), as PyTorch takes kernel sizes.
  std::vector<std::int64_t> pair(const std::string& key, std::vector<std::int64_t> fallback,
                                 Range range, const std::string& doc);
  std::vector<std::int64_t> required_pair(const std::string& key, Range range,
                                          const std::string& doc);
  /// A number, or one of `words` (returned through `word`, then the result is 0).
  double number_or_word(const std::string& key, double fallback, Range range,
                        const std::vector<std::string>& words, std::string& word,
                        const std::string& doc);

  /// Reads a key into the value that has its default.
  void read(const std::string& key, bool& value, const std::string& doc) {
    value = boolean(key, value, doc);
  }
  void read(const std::string& key, std::string& value, const std::string& doc) {
    value = text(key, value, doc);
  }
  template <class Number>
  void read(const std::string& key, Number& value, Range range, const std::string& doc) {
    if constexpr (std::is_integral_v<Number>) {
      value = static_cast<Number>(integer(key, static_cast<std::int64_t>(value), range, doc));
    } else {
      value = number(key, value, range, doc);
    }
  }
  /// The same of a text that names one of these values.
  template <class T>
  void read(const std::string& key, T& value,
            const std::vector<std::pair<std::string, std::type_identity_t<T>>>& named,
            const std::string& doc) {
    std::string text;
    std::vector<std::string> names;
    for (const auto& [name, meant] : named) {
      if (meant == value) text = name;
      names.push_back(name);
    }
    text = choice(key, text, names, doc);
    for (const auto& [name, meant] : named) {
      if (name == text) value = meant;
    }
  }

  /// The nested object; an absent one reads as {}. The child's finish() is its reader's duty. Where
  /// `shorthand` names a key, a string stands for an object with that key alone.
  ConfigSection section(const std::string& key, const std::string& doc,
                        const std::string& shorthand = {});
  /// The nested object, where it is given.
  std::optional<ConfigSection> optional_section(const std::string& key, const std::string& doc);
  /// A list of objects; each item's path is "key[i]". Absent: empty; `required`: must be there and
  /// not empty. With `lists` each item is such a list itself, which sections("", …) of it reads.
  /// `sample`: what a description shows in its place, as JSON; it reads as empty there.
  std::vector<ConfigSection> sections(const std::string& key, bool required, const std::string& doc,
                                      bool lists = false, std::string_view sample = {});
  /// Anything, as it stands (parsed by the caller, whose errors use path(key)). Null where absent,
  /// or in a description `sample`, which is JSON.
  nlohmann::json raw(const std::string& key, const std::string& type, const std::string& doc,
                     std::string_view sample = {});

  bool has(const std::string& key) const;  ///< given by the user
  /// Whether a key that was asked for has another value than its default, which saved configs give.
  bool changed(const std::string& key) const;
  /// Replaces what the resolved config says for a key (a value that depends on other keys).
  void resolve(const std::string& key, const nlohmann::json& value);

  std::string path(const std::string& key = {}) const;  ///< "sync.topology.type"
  /// Throws Error(kUsage) "[config] FILE: PATH: message; remedy". As with fail(), the remedy is
  /// what follows the format's last "; ".
  template <class... Args>
  [[noreturn]] void error(const std::string& key, fmt::format_string<Args...> format,
                          Args&&... args) const {
    throw Error(ExitCode::kUsage,
                detail::error_parts("config", place(key), format, fmt::make_format_args(args...)));
  }

  /// Refuses that a key is missing, or another one in its place: names the unknown key that it may
  /// have been meant by.
  [[noreturn]] void missing(const std::string& key, const std::string& expected,
                            const std::string& other = {}) const;

  /// The keys of other types than the one that the section is read for, each with its type.
  using OtherTypes = std::function<std::vector<std::pair<std::string, std::string>>()>;
  /// Lets finish() say of such a key whose it is. core/typed_section.h calls it.
  void set_type(const std::string& type, OtherTypes others);
  /// Whether keys that are asked for from here on are those of the section's type, which declared()
  /// leaves out.
  void mark_as_type_keys(bool on);

  /// Refuses unknown keys of this object. In a description nothing after the root's is run.
  void finish() const;
  /// Every key with its value, defaults included, of this object and the sections made from it.
  nlohmann::json resolved() const;
  /// All keys declared below this object, in order, but for those of types.
  std::vector<ConfigKey> declared() const;

 private:
  struct Node;
  ErrorPlace place(const std::string& key) const;
  explicit ConfigSection(std::shared_ptr<Node> node) : node_(std::move(node)) {}
  std::shared_ptr<Node> node_;
};

/// Parses JSON text strictly: no comments, no duplicate keys, at most 64 levels, finite numbers,
/// UTF-8. Errors (kUsage) name `source`, line and column.
nlohmann::json parse_json(std::string_view text, const std::string& source);
/// Reads and parses a file of at most 16 MiB; a missing or unreadable file is Error(kUsage) with
/// its name and the system's reason.
nlohmann::json read_json_file(const std::string& path);
/// Applies "key.path=value" (value: JSON, or a plain string if it does not parse) to a config;
/// numeric path parts index lists.
void apply_setting(nlohmann::json& config, const std::string& setting);

}  // namespace starling
