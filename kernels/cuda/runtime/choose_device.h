#pragma once

#include <span>
#include <string>

#include "kernels/cuda/runtime/runtime.h"

namespace starling::cuda {

/// Who asks for a device: one of the ranks of a host.
struct DeviceRequest {
  int local_rank = 0, local_size = 1;
  bool share = false;  ///< several ranks may use one device
};

struct DeviceChoice {
  int device = -1;      ///< -1: none
  std::string message;  ///< then: one line with the reason and the remedy
};

/// Which device a rank takes: rank i device i, or with `share` i modulo their number.
/// `driver_error` is device_count()'s where there is no usable driver; `visible` is the
/// environment's CUDA_VISIBLE_DEVICES, or null.
DeviceChoice choose_device(const DeviceRequest& request, std::span<const DeviceInfo> devices,
                           const std::string& driver_error, const char* visible);

/// Compute capabilities from this one on run the plug-in's code.
constexpr int kOldestMajor = 8;

}  // namespace starling::cuda
