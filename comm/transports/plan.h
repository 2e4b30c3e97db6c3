#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "comm/nccl/nccl.h"
#include "comm/transport.h"
#include "core/config.h"
#include "core/registry.h"

// What lives here: what a transport is made from, and those that need neither MPI nor NCCL nor
// shared memory of their own. plan: the registry; between_gpus: how NCCL, peers' memory and the
// host are put together; staged: through host memory; single: a rank alone; forwarding: another
// one's calls. checks, sums: what several transports share. A new one is its
// file and a line in plan.cpp.
namespace starling {

using NcclOpener = std::function<std::unique_ptr<Nccl>(std::string& why)>;

/// What a transport is put together for, at a run's start. All of it outlives the transport.
struct TransportSite {
  Backend& backend;  ///< whose buffers travel
  double timeout_seconds = 300.0;
  int max_ctas = 0;        ///< see NcclSettings
  bool own_cores = false;  ///< every rank of this host has cores of its own, on which it may wait
  NcclOpener open_nccl = starling::open_nccl;
};

/// What a kind of transport can do, known before any rank is connected, and how it is made then. A
/// maker names the members that it has something to say of.
struct TransportPlan {
  std::string name = {};  ///< as the config has it; read_transport() fills it in
  bool between_cpus = true, between_gpus = true;
  /// True: between GPUs every exchange passes through the host, so that no graph holds one
  bool through_host = true;
  /// Ranks of one host may read each other's parameters where they lie: two buffers of each bucket
  bool reads_parameters = false;
  /// NCCL may carry all of it, and a dry run tells what that takes
  bool counts_communicators = false;
  /// Collective, with two or more ranks. `messages` connects them by messages between CPUs: for
  /// control, and for what goes no better way. What cannot be had is an AgreedError(kUsage) with
  /// the reason.
  std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport> messages,
                                           const TransportSite&)>
      make = {};
};

/// A maker reads the transport's keys but `type`.
using TransportRegistry = Registry<TransportPlan, ConfigSection&>;
TransportRegistry& transports();
/// Reads `type` and the type's keys.
TransportPlan read_transport(ConfigSection& section);
/// Reads a transport from a value as `sync.transport` takes it: an object, or a type.
TransportPlan transport_of(const nlohmann::json& value);
/// "auto, direct or mpi": those between CPUs.
std::string transports_between_cpus();

}  // namespace starling
