#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace starling {

/// Facts about this host as JSON, which are sent to rank 0: names and addresses, cores, quota,
/// memory, limits, the folder, versions. Keys are those of `--json`.
nlohmann::json host_facts(const std::string& folder);

/// The interface through which this host reaches an address, e.g. "eth0"; empty if there is no
/// route.
std::string interface_to(const std::string& address);

}  // namespace starling
