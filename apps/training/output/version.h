#pragma once

#include <string>

namespace starling {

/// What --version prints: version, commit, compiler and libraries.
std::string version_report();
/// "NCCL 2.28.9", a line, if the CUDA plug-in has it. Opens the plug-in, which takes a moment.
std::string nccl_version_line();

}  // namespace starling
