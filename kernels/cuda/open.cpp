#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/runtime/choose_device.h"
#include "kernels/cuda/runtime/nvtx.h"
#include "kernels/cuda_plugin.h"

// The plug-in's entry point; see kernels/cuda_plugin.h.
namespace {

void answer(StarlingCudaOpening& opening, std::string_view message) {
  // The caller adds "[cuda]", and needs one line.
  if (message.starts_with('[')) {
    const auto end = message.find("] ");
    if (end != std::string_view::npos) message.remove_prefix(end + 2);
  }
  const std::size_t size = std::min(message.size(), sizeof(opening.message) - 1);
  std::memcpy(opening.message, message.data(), size);
  std::replace(opening.message, opening.message + size, '\n', ' ');
  opening.message[size] = '\0';
}

void open(StarlingCudaOpening& opening) {
  using namespace starling::cuda;
  std::string driver_error;
  const int count = device_count(driver_error);
  std::vector<DeviceInfo> devices;
  for (int i = 0; i < count; ++i) devices.push_back(device_info(i));
  const DeviceChoice choice =
      choose_device({opening.local_rank, opening.local_size, opening.share != 0}, devices,
                    driver_error, std::getenv("CUDA_VISIBLE_DEVICES"));
  if (choice.device < 0) return answer(opening, choice.message);
  install_nvtx();
  opening.backend =
      std::make_unique<CudaBackend>(choice.device, opening.tf32 != 0, opening.benchmark != 0,
                                    opening.deterministic != 0)
          .release();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) std::uint32_t starling_cuda_open(
    StarlingCudaOpening* opening) {
  opening->backend = nullptr;
  opening->message[0] = '\0';
  if (opening->abi != kStarlingCudaAbi) return kStarlingCudaAbi;  // the caller refuses
  try {
    open(*opening);
  } catch (const std::exception& error) {
    answer(*opening, error.what());
  } catch (...) {
    answer(*opening, "an unknown error while the GPU was opened");
  }
  return kStarlingCudaAbi;
}
