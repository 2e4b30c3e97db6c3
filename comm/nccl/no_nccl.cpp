#include <cstring>
#include <string_view>

#include "kernels/cuda_plugin.h"

// The plug-in's NCCL entry point in builds without NCCL.
extern "C" __attribute__((visibility("default"))) std::uint32_t starling_nccl_open(
    StarlingNcclOpening* opening) {
  constexpr std::string_view kMessage =
      "this build has no NCCL; build it again where NCCL 2.18 or newer is (NVIDIA's package "
      "libnccl-dev, or the Python wheel nvidia-nccl-cu13)";
  opening->nccl = nullptr;
  std::memcpy(opening->message, kMessage.data(), kMessage.size());
  opening->message[kMessage.size()] = '\0';
  return kStarlingCudaAbi;
}
