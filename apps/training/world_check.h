#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/world.h"
#include "core/parameter.h"

namespace starling {

/// AgreedError(kUsage) if ranks run different builds, with the first differing line. Collective.
void agree_on_build(World& world, const std::string& report);

/// The same for the resolved config, but for keys that may differ between hosts. Collective.
void agree_on_config(World& world, const nlohmann::json& resolved);

/// The same for the contents of the open data set. `path`, which may differ, is for the error.
void agree_on_data(World& world, const std::string& contents, const std::string& path);

/// What these checks compare, and the model's parameters, as short texts by name: for transports
/// whose connections check it again (TransportSite::identity). `contents`: of the open data set.
std::map<std::string, std::string> identity_of(const nlohmann::json& resolved,
                                               const std::string& contents,
                                               const std::vector<Parameter*>& parameters);

}  // namespace starling
