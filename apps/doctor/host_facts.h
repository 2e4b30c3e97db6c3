#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace starling {

/// What a rank finds out about its host by itself, as JSON, which travels to rank 0: names and
/// addresses, cores, quota, memory, limits, the folder, versions. Keys are those of `--json`.
nlohmann::json host_facts(const std::string& folder);

/// The interface and the address by which this host reaches another one's address: "eth0"; empty
/// where it has no way there.
std::string interface_to(const std::string& address);

}  // namespace starling
