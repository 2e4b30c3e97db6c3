#pragma once

#include <span>
#include <string>

#include "kernels/cuda/runtime/runtime.h"

namespace starling::cuda {

/// The rank of a host that needs a device.
struct DeviceRequest {
  int local_rank = 0, local_size = 1;
  bool share = false;  ///< several ranks may use one device
};

struct DeviceChoice {
  int device = -1;      ///< -1: none
  std::string message;  ///< if there is none: one line with the reason and the remedy
};

/// Chooses a rank's device: rank i gets device i, or with `share` i modulo the number of devices.
/// `driver_error`: device_count()'s message if there is no usable driver; `visible`: the
/// environment's CUDA_VISIBLE_DEVICES, or null.
DeviceChoice choose_device(const DeviceRequest& request, std::span<const DeviceInfo> devices,
                           const std::string& driver_error, const char* visible);

/// The oldest supported compute capability (major version).
constexpr int kOldestMajor = 8;

}  // namespace starling::cuda
