#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace starling::test {

/// What algorithms keep, read from the checkpoint of all ranks in `folder`, of a run in fp64: how far it is from what must hold between the
/// ranks whatever was trained (algorithms.md, section 9). Infinite where bits differ that must not; 0 for algorithms that keep nothing of
/// the kind. `said` becomes what was looked at.
double fault_of_saved_states(const std::string& folder, int ranks, const nlohmann::json& config, std::string& said);

}  // namespace starling::test
