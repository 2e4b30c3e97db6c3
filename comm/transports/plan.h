#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "comm/membership.h"
#include "comm/nccl/nccl.h"
#include "comm/transport.h"
#include "core/config.h"
#include "core/registry.h"

// This folder: transports that need neither MPI, NCCL nor shared memory themselves, and what
// several transports share. plan: the registry; between_gpus: combines NCCL, peer memory and host
// memory; staged: through host memory; single: for one rank; forwarding: a base class; checks;
// sums. A new transport is a file and a line in plan.cpp.
namespace starling {

using NcclOpener = std::function<std::unique_ptr<Nccl>(std::string& why)>;

/// What a transport is made for, at a run's start. All of it outlives the transport.
struct TransportSite {
  Backend& backend;  ///< of the buffers to exchange
  double timeout_seconds = 300.0;
  int max_ctas = 0;        ///< see NcclSettings
  bool own_cores = false;  ///< ranks of this host do not share cores, so that waits may poll
  NcclOpener open_nccl = starling::open_nccl;
  /// What must be equal on all ranks, by name, for transports that make connections of their own
  std::map<std::string, std::string> identity = {};
  /// Not null: ranks may join later, and be lost. The transport then makes this
  std::shared_ptr<Membership>* membership = nullptr;
  int replica = 1;  ///< ranks of a replica (comm/replica.h), which join and are lost together
  double heartbeat_seconds = 5.0;  ///< without a sign of life, where ranks may be lost
};

/// The properties of a transport, known before ranks are connected, and how to make it. Members
/// that do not apply keep their defaults.
struct TransportPlan {
  std::string name = {};  ///< in configs; set by read_transport()
  bool between_cpus = true, between_gpus = true;
  /// Exchanges between GPUs go through the host, so that graphs cannot contain them
  bool through_host = true;
  /// Ranks of one host may read each other's parameters, which takes two buffers per bucket
  bool reads_parameters = false;
  /// It may use NCCL, whose communicators --dry-run counts
  bool counts_communicators = false;
  bool lets_join = false;  ///< it can make TransportSite::membership
  /// Collective, with at least two ranks. `messages` is a transport between CPUs, for the control
  /// plane and as a fallback. AgreedError(kUsage) with the reason if the transport is not possible.
  std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport> messages,
                                           const TransportSite&)>
      make = {};
};

/// A registered function reads the transport's keys but `type`.
using TransportRegistry = Registry<TransportPlan, ConfigSection&>;
TransportRegistry& transports();
/// Reads `type` and the type's keys.
TransportPlan read_transport(ConfigSection& section);
/// "auto, direct or mpi": those between CPUs.
std::string transports_between_cpus();

}  // namespace starling
