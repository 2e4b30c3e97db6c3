#pragma once

#include <string>

#include "kernels/cuda/runtime/runtime.h"

namespace starling::cuda {

/// Tries Launch::dependent on two small kernels, issued and in a graph: a runtime or driver that refuses it, or gets it wrong, shows here
/// and not in the capture of a training step, which would be lost. Why not to use it; empty where it works. The host waits for the stream.
/// `counter` is one unsigned of the device, 0 before and after.
std::string why_not_dependent(unsigned* counter, StreamHandle stream);

}  // namespace starling::cuda
