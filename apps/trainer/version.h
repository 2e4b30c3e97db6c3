#pragma once

#include <string>

namespace starling {

std::string version_text();  ///< "0.1.0"
std::string commit_text();   ///< the commit that was built, "unknown" outside a checkout
/// What --version prints: version, commit, compiler and libraries.
std::string version_report();

}  // namespace starling
