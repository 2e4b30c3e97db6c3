#include "kernels/cuda/runtime/nvtx.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

#include <cstdlib>

#include "core/trace.h"

namespace starling::cuda {

void install_nvtx() {
  // Profilers set this variable to the path of their library before the program starts; without it
  // NVTX does nothing.
  static const TraceHook hook{[](const char* name) { nvtxRangePushA(name); },
                              [] { nvtxRangePop(); },
                              std::getenv("NVTX_INJECTION64_PATH") != nullptr};
  set_trace_hook(&hook);
}

}  // namespace starling::cuda
#else
namespace starling::cuda {

void install_nvtx() {}

}  // namespace starling::cuda
#endif
