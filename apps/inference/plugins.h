#pragma once

#include <string>
#include <vector>

namespace starling {

/// Opens shared libraries and calls their `extern "C" void starling_register_plugin()`, which adds
/// to the registries. A path that is open already is passed over. Before any of its code runs, a
/// library must say that it was compiled with these headers and this standard library
/// (apps/inference/plugin_stamp.h). Errors are Error(kUsage) that name the library.
void load_plugins(const std::vector<std::string>& paths);

}  // namespace starling
