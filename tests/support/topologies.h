#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/error.h"
#include "topology/topology.h"

namespace starling::test {

/// Every registered type that takes n ranks without further keys.
inline std::vector<std::string> types_for(int n) {
  register_builtin_topologies();
  std::vector<std::string> types;
  for (const std::string& type : topologies().names()) {
    try {
      ConfigSection section(nlohmann::json{{"type", type}}, "topology");
      make_topology(section, {n, n});
      types.push_back(type);
    } catch (const Error&) {  // this many ranks do not fit
    }
  }
  return types;
}

}  // namespace starling::test
