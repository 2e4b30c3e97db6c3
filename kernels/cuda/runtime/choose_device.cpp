#include "kernels/cuda/runtime/choose_device.h"

#include "core/error.h"

namespace starling::cuda {

DeviceChoice choose_device(const DeviceRequest& request, std::span<const DeviceInfo> devices,
                           const std::string& driver_error, const char* visible) {
  if (!driver_error.empty()) return {-1, driver_error};
  if (devices.empty()) {
    if (visible) {
      return {-1, fmt::format("no GPU is visible: the environment has CUDA_VISIBLE_DEVICES={}; "
                              "unset it, or name a GPU that nvidia-smi lists",
                              *visible ? visible : "(empty)")};
    }
    return {-1, "the driver finds no NVIDIA GPU on this host; nvidia-smi shows what it sees"};
  }
  const int count = static_cast<int>(devices.size());
  if (request.local_size > count && !request.share) {
    return {-1, fmt::format("{} ranks on this host but {} GPU{}; start at most {} rank{} a host, "
                            "or set STARLING_SHARE_GPUS=1 to let ranks share a GPU",
                            request.local_size, count, count == 1 ? "" : "s", count,
                            count == 1 ? "" : "s")};
  }
  if (request.local_rank < 0)
    return {-1, fmt::format("a local rank of {}; it counts from 0", request.local_rank)};
  const int device = request.local_rank % count;
  const DeviceInfo& info = devices[static_cast<std::size_t>(device)];
  if (info.major < kOldestMajor) {
    return {-1, fmt::format("GPU {}, {}, is an sm_{}{}; this plug-in has code for sm_80, sm_90, "
                            "sm_100 and newer: an A100 or a newer GPU is needed",
                            device, info.name, info.major, info.minor)};
  }
  // A newer runtime works with older drivers of the same major version.
  if (info.driver_version / 1000 < info.runtime_version / 1000) {
    return {-1, fmt::format("the NVIDIA driver supports CUDA {}.{}, this program needs {}.0; "
                            "install a newer driver",
                            info.driver_version / 1000, info.driver_version % 1000 / 10,
                            info.runtime_version / 1000)};
  }
  return {device, {}};
}

}  // namespace starling::cuda
