#pragma once

#include <string>
#include <vector>

#include "core/registry.h"

namespace starling {

/// What `sync.transport` may ask for, and what it means for a run: known before any rank is connected. What puts it together at a run's
/// start is choose_transport() (apps/trainer/device/gpu_transport.h).
struct TransportKind {
  enum class Use : unsigned char { kNever, kWherePossible, kRequired };
  bool between_cpus = false;
  Use nccl = Use::kNever;   ///< what carries messages between GPUs; without it, host memory does
  Use peers = Use::kNever;  ///< ranks of one host read each other's parameters where they lie; of GPUs, where their memory allows it
  bool counts_communicators = false;  ///< NCCL carries all of it where it can, and a dry run tells what that takes

  /// Between GPUs every exchange passes through the host, so that no graph holds one.
  bool through_host() const { return nccl == Use::kNever && peers == Use::kNever; }
  bool reads_parameters() const { return peers != Use::kNever; }
};

using TransportKinds = Registry<TransportKind>;
TransportKinds& transport_kinds();
/// "auto, direct or mpi": those between CPUs.
std::string kinds_between_cpus();

}  // namespace starling
