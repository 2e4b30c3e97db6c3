#pragma once

#include <string>
#include <string_view>

#include "comm/world.h"

namespace starling {

/// A timeline begins with the run that it is of: its folder, and the first line of its metrics, by
/// which the report knows it wherever both lie.
inline constexpr std::string_view kTimelineBegin =
    R"({"displayTimeUnit":"ms","otherData":{"program":"starling-train",)";

/// Writes the timeline of all ranks that have events, on the lowest of them. `folder`: the run's,
/// on rank 0. Collective.
void write_timeline(const std::string& path, const std::string& mine, const std::string& folder,
                    World& world);

/// A path that means the same in every folder, as far as JSON can say it.
std::string absolute_path(const std::string& path);

}  // namespace starling
