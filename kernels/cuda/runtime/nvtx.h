#pragma once

namespace starling::cuda {

/// Makes the spans of the host (core/trace.h), from now on, NVTX ranges of the same names, where
/// they are traced or a profiler is attached. Does nothing where the headers of NVTX are missing.
void install_nvtx();

}  // namespace starling::cuda
