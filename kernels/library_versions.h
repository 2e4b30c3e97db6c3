#pragma once

#include <string>

namespace starling {

/// Versions of the libraries that the kernels use, one a line: "oneDNN 2.6.3".
std::string kernel_library_versions();

}  // namespace starling
