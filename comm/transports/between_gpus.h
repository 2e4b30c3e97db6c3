#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "comm/transports/plan.h"

namespace starling {

/// Which transports to use between GPUs.
struct GpuWays {
  enum class Use : unsigned char { kNever, kWherePossible, kRequired };
  Use nccl = Use::kNever;  ///< for messages; otherwise they go through host memory
  /// Ranks of one host read each other's parameters (comm/shared/peer_transport.h)
  Use peers = Use::kNever;
};

/// Makes a transport between the ranks' GPUs. Messages use NCCL if every rank has it and no two
/// ranks of a host share a GPU (or each has its own NCCL_HOSTID), otherwise host memory. On top of
/// either, peer memory is used if all pairs of ranks of a host can access each other's. Rank 0 logs
/// why something usable is not used. Collective. AgreedError(kUsage) with the reason if something
/// required is not possible. `name`: that in the config.
std::unique_ptr<Transport> make_transport_between_gpus(const std::string& name, const GpuWays& ways,
                                                       std::unique_ptr<Transport> control,
                                                       const TransportSite& site);

/// What ranks tell each other before NCCL is initialised.
struct NcclAnswer {
  std::string missing;  ///< why NCCL is not available; empty: it is
  std::string device, nccl_host, host;
};
/// Why NCCL cannot connect these ranks, in one line; empty if it can.
std::string why_not_nccl(const std::vector<NcclAnswer>& answers);

}  // namespace starling
