#pragma once

#include <string>

namespace starling {

std::string version_text();  ///< such as "0.2.0"
std::string commit_text();   ///< the commit that was built, "unknown" outside a checkout

}  // namespace starling
