#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/config.h"

namespace starling {

/// A section's finish() says of a key that `type` does not have and other types of the registry do:
/// "is not a key of sgd, but of adam, adamw". `args`: what its makers take besides a section;
/// copied.
template <class R, class... Args>
void know_types(const R& registry, const std::string& type, ConfigSection& section,
                const Args&... args) {
  section.set_type(type, [&registry, type, args...] {
    std::vector<std::pair<std::string, std::string>> others;
    for (const std::string& other : registry.names()) {
      if (other == type) continue;
      const ConfigSection description = ConfigSection::described_by(
          [&](ConfigSection& keys) { (void)registry.make(other, "type", keys, args...); });
      for (const ConfigKey& key : description.declared()) others.emplace_back(other, key.path);
    }
    return others;
  });
}

/// What the registry makes by `type`, a key of the section, of the section's other keys. finish()
/// stays the caller's.
template <class R, class... Args>
auto make_typed(const R& registry, const std::string& type, ConfigSection& section,
                const Args&... args) {
  know_types(registry, type, section, args...);
  section.mark_as_type_keys(true);
  auto made = registry.make(type, section.path("type"), section, args...);
  section.mark_as_type_keys(false);
  return made;
}

}  // namespace starling
