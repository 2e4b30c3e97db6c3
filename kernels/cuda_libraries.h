#pragma once

#include <string>

namespace starling {

/// One line of what the loader says of the CUDA plug-in `path` that it cannot load (`error`, as
/// dlerror() gives it). Where one of CUDA's libraries is missing, it names the Python wheel that
/// has it. Where one lacks a function, it names its version and place, and what the plug-in was
/// built with.
std::string explain_cuda_load_error(const std::string& path, const std::string& error);

}  // namespace starling
