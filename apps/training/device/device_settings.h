#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/autograd.h"
#include "core/config.h"
#include "core/dtype.h"

namespace starling {

/// "cuda_graphs": whole steps as graphs of the device; see step_graphs.h.
enum class GraphChoice : std::uint8_t { kAuto, kOn, kOff };

/// What a rank computes on, and in which format.
struct DeviceSettings {
  std::string type, precision;    ///< as the config says: "auto", "cuda"; "auto", "bf16"
  DType dtype = DType::kFloat32;  ///< of parameters, gradients, optimizer state and statistics
  /// Of activations and products: dtype, bf16 or fp16; see choose_precision()
  DType compute = DType::kFloat32;
  int threads = 0;  ///< compute threads of a rank on a CPU; 0: an equal share of the host's cores
  bool deterministic = true, tf32 = false, cudnn_benchmark = false;  ///< see BackendSettings
  GraphChoice cuda_graphs = GraphChoice::kAuto;
  std::optional<Recompute> recompute;  ///< none: as Pass has it for the device
  bool check_numbers = false;          ///< the host looks for numbers that are not finite
};

/// Reads all of these but `check_numbers`.
DeviceSettings read_device(ConfigSection& root);

}  // namespace starling
