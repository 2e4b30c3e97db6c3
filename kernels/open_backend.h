#pragma once

#include <memory>

#include "core/backend.h"

// The folder kernels has the backends. open_backend opens a CPU (cpu/) or, through a plug-in that
// is loaded at run time, a GPU (cuda/). optimizer: fused updates; optimizers/: the rules and their
// settings; math/: arithmetic shared by CPU and GPU. It uses core, and the libraries oneDNN, cuDNN
// and cuBLASLt where possible, and is independent of layers and ranks.

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

/// Opens a device. Throws Error(kUsage) with a remedy if it is missing or unusable: no plug-in, no
/// driver or one that is too old, an unsupported architecture, more ranks on this host than devices
/// (unless the environment has STARLING_SHARE_GPUS=1).
std::unique_ptr<Backend> open_backend(DeviceType device, const BackendSettings& settings);
inline std::unique_ptr<Backend> open_backend(DeviceType device, int threads) {
  return open_backend(device, BackendSettings{threads});
}

}  // namespace starling
