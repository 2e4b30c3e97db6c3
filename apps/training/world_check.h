#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "comm/world.h"

namespace starling {

/// Throws AgreedError(kUsage) on every rank where ranks run different builds: the first line of
/// their reports (version_report()) that differs, on both sides, with the hosts. Collective.
void agree_on_build(World& world, const std::string& report);

/// Agrees on the resolved config, compared by digest: names the first key that differs, its two
/// values, and the ranks. Keys that a host may have for itself (paths, device, threads) are left
/// out. Collective.
void agree_on_config(World& world, const nlohmann::json& resolved);

/// Agrees on what an open data set holds (contents_of()). Each host may have it at a `path` of its
/// own, which the error names. Collective.
void agree_on_data(World& world, const std::string& contents, const std::string& path);

}  // namespace starling
