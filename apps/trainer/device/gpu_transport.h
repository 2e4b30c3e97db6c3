#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/nccl/nccl.h"
#include "comm/transport.h"
#include "core/backend.h"

namespace starling {

/// What a config says about exchanges between GPUs.
struct GpuTransportSettings {
  std::string wanted = "auto";  ///< a name of transport_kinds()
  double timeout_seconds = 300.0;
  int max_ctas = 0;
};

using NcclOpener = std::function<std::unique_ptr<Nccl>(std::string& why)>;

/// What carries exchanges between the ranks' GPUs: NCCL with `auto`, where every rank has it and no two ranks of a host share a GPU (or
/// each has its own NCCL_HOSTID), else host memory; and over either, with `auto`, the ranks of one host read each other's parameters
/// (comm/shared/peer_transport.h) where every two of them can. One line from rank 0 says why anything is not used. Collective. `nccl` or
/// `direct` where it cannot be is an AgreedError(kUsage) with the reason.
std::unique_ptr<Transport> choose_gpu_transport(const GpuTransportSettings& settings, std::unique_ptr<Transport> control, Backend& backend,
                                                const NcclOpener& open = open_nccl);

/// What one rank tells all others about NCCL: that it cannot, and why, or which device it has, and which host NCCL takes its own for.
struct NcclAnswer {
  std::string missing;  ///< not empty: why there is no NCCL
  std::string device, nccl_host, host;
};
/// Why NCCL cannot connect these ranks, in one line; empty where it can.
std::string why_not_nccl(const std::vector<NcclAnswer>& answers);

}  // namespace starling
