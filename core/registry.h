#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/text.h"

namespace starling {

/// "; did you mean 'x'?" for the known name nearest to `found` (edit distance, without regard to case), or "" if none is near.
std::string suggestion(std::string_view found, const std::vector<std::string>& known);

/// Makes objects of one kind by name. Args are what every maker takes. One instance per kind lives in the shared library of
/// that kind's folder (e.g. `Registry<Topology, …>& topologies()`), so a plug-in adds to the same table.
template <class Base, class... Args>
class Registry {
 public:
  using Maker = std::function<Base(Args...)>;
  /// `kind` as errors name it: "topology", "layer".
  explicit Registry(std::string kind) : kind_(std::move(kind)) {}

  void add(const std::string& name, Maker maker, std::string summary = {}) {
    if (!entries_.emplace(name, Entry{std::move(maker), std::move(summary)}).second) {
      fail(ExitCode::kUsage, kind_, "the name '{}' is registered twice", name);
    }
  }
  bool contains(const std::string& name) const { return entries_.count(name) != 0; }
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& [name, entry] : entries_) result.push_back(name);
    return result;
  }
  const std::string& summary(const std::string& name) const { return entries_.at(name).summary; }
  /// `where` is the config's key path, for the error of an unknown name.
  Base make(const std::string& name, std::string_view where, Args... args) const {
    const auto it = entries_.find(name);
    if (it == entries_.end()) {
      std::string known;
      for (const auto& [other, entry] : entries_) known += (known.empty() ? "" : ", ") + other;
      fail(ExitCode::kUsage, "config", {.key = std::string(where)}, "unknown {} '{}'{}; known: {}", kind_, shown(name),
           suggestion(name, names()), known);
    }
    return it->second.maker(std::forward<Args>(args)...);
  }

 private:
  struct Entry {
    Maker maker;
    std::string summary;
  };
  std::string kind_;
  std::map<std::string, Entry> entries_;
};

}  // namespace starling
