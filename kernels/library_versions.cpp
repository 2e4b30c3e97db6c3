#include "kernels/library_versions.h"

#include <fmt/format.h>

#include <oneapi/dnnl/dnnl.hpp>

namespace starling {

std::string kernel_library_versions() {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("oneDNN {}.{}.{}", version->major, version->minor, version->patch);
}

}  // namespace starling
