#pragma once

#include <memory>

#include "core/backend.h"

// What lives in kernels: what computes. open_backend opens a CPU (cpu/) or, through a plug-in that
// is opened at run time, a GPU (cuda/). optimizer: a rule's fused update, from one formula for
// both; optimizers/: the rules and their settings; math/: arithmetic that CPU and GPU share, with
// no memory of its own. It uses core, and libraries where it can: oneDNN, cuDNN, cuBLASLt. It knows
// neither layers nor ranks.

namespace starling {

struct BackendSettings {
  int threads = 1;  ///< of a CPU
  // Of a GPU:
  int local_rank = 0, local_size = 1;  ///< among the ranks of this host: rank i takes device i
  /// fp32 products may round their operands to 10 bits of mantissa
  bool tf32 = false;
  /// Time the candidates for each convolution instead of trusting the heuristic
  bool benchmark = false;
  bool deterministic = true;  ///< only engines that give the same bits every time
};

/// Opens a device. Throws Error(kUsage) with the remedy where it is missing or unusable: no
/// plug-in, no driver or too old a one, an architecture that the plug-in has no code for, more
/// ranks on this host than devices (unless the environment has STARLING_SHARE_GPUS=1).
std::unique_ptr<Backend> open_backend(DeviceType device, const BackendSettings& settings);
inline std::unique_ptr<Backend> open_backend(DeviceType device, int threads) {
  return open_backend(device, BackendSettings{threads});
}

}  // namespace starling
