#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "comm/planner/network_model.h"

namespace starling {

/// One thing that was looked at, and what to do about it.
struct Finding {
  enum class Level : std::uint8_t { kGood, kWarning, kFault };
  Level level = Level::kGood;
  std::string check, text, remedy;
};

/// What all ranks have found: host_facts() by rank, with `rank`, `ways` (interfaces to the other
/// hosts), `clock` (seconds that its clock is ahead of rank 0's), `sees_folder` (whether the folder
/// is rank 0's), `warnings` (the MPI session's); and what was measured between them.
std::vector<Finding> findings(const std::vector<nlohmann::json>& ranks,
                              const std::optional<NetworkModel>& network);
/// As lines for people; as JSON, with what the ranks found.
std::string findings_text(const std::vector<Finding>& findings);
nlohmann::json findings_json(const std::vector<Finding>& findings,
                             const std::vector<nlohmann::json>& ranks);

}  // namespace starling
