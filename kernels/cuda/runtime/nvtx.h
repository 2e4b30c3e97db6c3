#pragma once

namespace starling::cuda {

/// From now on, host spans (core/trace.h) are also NVTX ranges of the same names, if tracing is on
/// or a profiler is attached. Does nothing if built without NVTX.
void install_nvtx();

}  // namespace starling::cuda
