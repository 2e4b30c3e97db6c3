#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/text.h"

namespace starling {

/// The known name most similar to `found` (case-insensitive edit distance), or "" if none is
/// similar.
std::string nearest(std::string_view found, const std::vector<std::string>& known);
/// "; did you mean 'x'?" with it, or "".
std::string suggestion(std::string_view found, const std::vector<std::string>& known);

/// The file of the plug-in that is registering its parts on this thread; empty: the program itself.
const std::string& registering_plugin();
/// During its lifetime registering_plugin() is this file.
class PluginScope {
 public:
  explicit PluginScope(std::string file);
  ~PluginScope();
  PluginScope(const PluginScope&) = delete;
  PluginScope& operator=(const PluginScope&) = delete;

 private:
  std::string before_;
};

/// Factory of objects of one kind, by name; Args are the parameters of all its functions. There is
/// one instance per kind, in the shared library of that kind's folder (e.g. `Registry<Topology, …>&
/// topologies()`), so that plug-ins add to the same table.
template <class Base, class... Args>
class Registry {
 public:
  using Maker = std::function<Base(Args...)>;
  /// `kind`: for errors, e.g. "topology". `may_give_none`: a function may return null, meaning that
  /// the config selects none.
  explicit Registry(std::string kind, bool may_give_none = false)
      : kind_(std::move(kind)), may_give_none_(may_give_none) {}

  void add(const std::string& name, Maker maker, std::string summary = {}) {
    if (!maker || name.empty())
      fail(ExitCode::kUsage, kind_, "'{}', from {}, is registered without a {}", name,
           source_of(registering_plugin()), maker ? "name" : "maker");
    const auto [entry, added] =
        entries_.emplace(name, Entry{std::move(maker), std::move(summary), registering_plugin()});
    if (added) return;
    fail(ExitCode::kUsage, kind_,
         "the name '{}' is registered twice: by {} and by {}; give one of them another name", name,
         source_of(entry->second.plugin), source_of(registering_plugin()));
  }
  bool contains(const std::string& name) const { return entries_.count(name) != 0; }
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& [name, entry] : entries_) result.push_back(name);
    return result;
  }
  const std::string& summary(const std::string& name) const { return entries_.at(name).summary; }
  /// For errors: "x", or "x of ./libmine.so" if a plug-in added it.
  std::string whose(const std::string& name) const {
    const auto it = entries_.find(name);
    return it == entries_.end() || it->second.plugin.empty() ? name
                                                             : name + " of " + it->second.plugin;
  }
  /// `where`: the config's key path, for the error about an unknown name.
  Base make(const std::string& name, std::string_view where, Args... args) const {
    const auto it = entries_.find(name);
    if (it == entries_.end()) {
      std::string known;
      for (const auto& [other, entry] : entries_) known += (known.empty() ? "" : ", ") + other;
      fail(ExitCode::kUsage, "config", {.key = std::string(where)}, "unknown {} '{}'{}; known: {}",
           kind_, shown(name), suggestion(name, names()), known);
    }
    const auto whose = [&, &entry = it->second] {
      return fmt::format("'{}'{}", name, entry.plugin.empty() ? "" : " of " + entry.plugin);
    };
    try {
      Base made = it->second.maker(std::forward<Args>(args)...);
      if constexpr (std::is_convertible_v<std::nullptr_t, Base>) {
        if (made == nullptr && !may_give_none_)
          fail(ExitCode::kUsage, kind_, "the maker of {} gives null; it must give an object",
               whose());
      }
      return made;
    } catch (const Error&) {
      throw;
    } catch (...) {
      detail::rethrow_named(kind_, whose());
    }
  }

 private:
  struct Entry {
    Maker maker;
    std::string summary;
    std::string plugin;  ///< its file; empty: the program itself
  };
  static std::string source_of(const std::string& plugin) {
    return plugin.empty() ? "the program itself" : plugin;
  }
  std::string kind_;
  bool may_give_none_;
  std::map<std::string, Entry> entries_;
};

}  // namespace starling
