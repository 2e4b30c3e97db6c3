#pragma once

#include <string>

namespace starling {

/// What --version prints: version, commit, compiler and libraries.
std::string version_report();
/// "NCCL 2.28.9", a line, where the CUDA plug-in is here and has it; else empty. Opens the plug-in,
/// which takes a moment.
std::string nccl_version_line();

}  // namespace starling
