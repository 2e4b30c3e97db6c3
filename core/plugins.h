#pragma once

#include <string>
#include <vector>

namespace starling {

/// Opens shared libraries and calls their `extern "C" void starling_register_plugin()`, which adds to the registries. A path that is
/// open already is passed over. Errors are Error(kUsage) that name the library.
void load_plugins(const std::vector<std::string>& paths);

}  // namespace starling
