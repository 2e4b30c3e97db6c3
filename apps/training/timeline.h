#pragma once

#include <string>
#include <string_view>

#include "comm/world.h"

namespace starling {

/// A timeline begins with its run's folder and first line of metrics: the report looks at them.
inline constexpr std::string_view kTimelineBegin =
    R"({"displayTimeUnit":"ms","otherData":{"program":"starling-train",)";

/// Writes the timeline of all ranks that have events. `folder`: on rank 0. Collective.
void write_timeline(const std::string& path, const std::string& mine, const std::string& folder,
                    World& world);

/// Makes a path absolute, as far as JSON can represent it.
std::string absolute_path(const std::string& path);

}  // namespace starling
