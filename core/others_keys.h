#pragma once

#include <string>
#include <vector>

#include "core/config.h"
#include "core/error.h"
#include "core/registry.h"

namespace starling {

/// Collects the keys of the types of one kind that a section was not made by; see
/// refuse_others_keys().
class OthersKeys {
 public:
  /// `declared`: what the type `other` reads.
  void add(const std::string& other, const ConfigSection& declared);
  /// Throws where `section`, read by `type`, has a key that `type` did not ask for and another type
  /// knows: "is not a key of sgd, but of adam, adamw". finish() would say "unknown key" of it.
  void refuse(const ConfigSection& section, const std::string& type) const;

 private:
  struct Entry {
    std::string type, key;
  };
  std::vector<Entry> entries_;
};

/// A key that `type` does not have may be one of another type of the same registry; then the error
/// names these.
template <class R>
void refuse_others_keys(const R& registry, const ConfigSection& section, const std::string& type) {
  OthersKeys others;
  for (const std::string& other : registry.names()) {
    if (other == type) continue;
    ConfigSection description = ConfigSection::describe();
    try {
      (void)registry.make(other, "type", description);
    } catch (const Error&) {
      // A maker may refuse the placeholders of required keys; by then it has declared them.
    }
    others.add(other, description);
  }
  others.refuse(section, type);
}

}  // namespace starling
