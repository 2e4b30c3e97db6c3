#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "comm/transports/plan.h"

namespace starling {

/// Which ways between GPUs are taken.
struct GpuWays {
  enum class Use : unsigned char { kNever, kWherePossible, kRequired };
  Use nccl = Use::kNever;  ///< what carries messages; without it, host memory does
  /// Ranks of one host read each other's parameters where they lie (comm/shared/peer_transport.h)
  Use peers = Use::kNever;
};

/// Makes what carries exchanges between the ranks' GPUs: NCCL or host memory. NCCL is taken where
/// every rank has it and no two ranks of a host share a GPU (or each has its own NCCL_HOSTID). Over
/// either goes memory of peers, where every two ranks of each host can reach each other's. One line
/// from rank 0 says why anything that could be used is not. Collective. What is required and cannot
/// be is an AgreedError(kUsage) with the reason. `name`: what the config calls this.
std::unique_ptr<Transport> make_transport_between_gpus(const std::string& name, const GpuWays& ways,
                                                       std::unique_ptr<Transport> control,
                                                       const TransportSite& site);

/// What one rank tells all others about NCCL: that it cannot, and why, or which device it has, and
/// which host NCCL takes its own for.
struct NcclAnswer {
  std::string missing;  ///< not empty: why there is no NCCL
  std::string device, nccl_host, host;
};
/// Why NCCL cannot connect these ranks, in one line; empty where it can.
std::string why_not_nccl(const std::vector<NcclAnswer>& answers);

}  // namespace starling
