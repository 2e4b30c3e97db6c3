#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"

namespace starling {

/// A Markdown section: "## title" and a table of the keys (key, type, default, allowed, meaning),
/// in the order given. Characters that would break the table are escaped. A key declared several
/// times is listed once.
std::string config_markdown(std::string_view title, const std::vector<ConfigKey>& keys);
/// A Markdown block with the object as JSON, in lines of at most 100 columns; its keys in the order
/// given.
std::string config_sample(const nlohmann::ordered_json& object);

}  // namespace starling
