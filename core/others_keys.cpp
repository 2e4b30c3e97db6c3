#include "core/others_keys.h"

#include <map>
#include <set>

namespace starling {

void OthersKeys::add(const std::string& other, const ConfigSection& declared) {
  for (const ConfigKey& key : declared.declared()) entries_.push_back({other, key.path});
}

void OthersKeys::refuse(const ConfigSection& section, const std::string& type) const {
  std::set<std::string> own;
  for (const ConfigKey& key : section.declared()) own.insert(key.path);
  std::map<std::string, std::string> owners;
  for (const auto& [other, key] : entries_) {
    if (!section.has(key) || own.count(section.path(key)) != 0) continue;
    std::string& names = owners[key];
    names += (names.empty() ? "" : ", ") + other;
  }
  if (owners.empty()) return;
  const auto& [key, names] = *owners.begin();
  section.error(key, "is not a key of {}, but of {}", type, names);
}

}  // namespace starling
