#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "comm/planner/network_model.h"

namespace starling {

/// The result of one check, and what to do about it.
struct Finding {
  enum class Level : std::uint8_t { kGood, kWarning, kFault };
  Level level = Level::kGood;
  std::string check, text, remedy;
};

/// Evaluates the facts of all ranks: host_facts(), plus `rank`, `ways` (interfaces to the other
/// hosts), `clock` (seconds ahead of rank 0's), `sees_folder` (rank 0's), and `warnings` (of the
/// MPI session). `network`: the measured model, if there is one.
std::vector<Finding> findings(const std::vector<nlohmann::json>& ranks,
                              const std::optional<NetworkModel>& network);
/// The findings as text, and as JSON including the facts of the ranks.
std::string findings_text(const std::vector<Finding>& findings);
nlohmann::json findings_json(const std::vector<Finding>& findings,
                             const std::vector<nlohmann::json>& ranks);

}  // namespace starling
