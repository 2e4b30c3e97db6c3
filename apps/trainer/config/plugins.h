#pragma once

#include <string>
#include <vector>

namespace starling {

/// Fills every registry with what the project brings along. Safe to call again.
void register_builtins();

/// Opens shared libraries and calls their `extern "C" void starling_register_plugin()`, which adds to the registries. A path that is
/// open already is passed over. Errors are Error(kUsage) that name the library.
void load_plugins(const std::vector<std::string>& paths);

}  // namespace starling
