#include <memory>
#include <string>

#include "comm/nccl/nccl.h"
#include "core/error.h"
#include "kernels/cuda_plugin.h"

namespace starling {

std::unique_ptr<Nccl> open_nccl(std::string& why) {
  std::string missing;
  const auto open =
      reinterpret_cast<StarlingNcclOpen>(cuda_plugin_function(kStarlingNcclEntry, missing));
  if (!open) {
    why = "NCCL needs " + missing;
    return nullptr;
  }
  StarlingNcclOpening opening{};
  opening.abi = kStarlingCudaAbi;
  const std::uint32_t abi = open(&opening);
  if (abi != kStarlingCudaAbi) {
    why = fmt::format(
        "the plug-in {} speaks version {} of the interface, this program {}; build both from the "
        "same source",
        kStarlingCudaLibrary, abi, kStarlingCudaAbi);
    return nullptr;
  }
  opening.message[sizeof(opening.message) - 1] = '\0';
  if (!opening.nccl) why = opening.message;
  return std::unique_ptr<Nccl>(opening.nccl);
}

}  // namespace starling
