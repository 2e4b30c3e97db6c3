#pragma once

#include <string>

namespace starling {

/// What the loader says of the CUDA plug-in `path` that it cannot load (`error`, as dlerror() gives
/// it), on one line. Where one of CUDA's libraries is missing, it names the Python wheel that has
/// it; where one lacks a function, its version and place, and what the plug-in was built with.
std::string explain_cuda_load_error(const std::string& path, const std::string& error);

}  // namespace starling
