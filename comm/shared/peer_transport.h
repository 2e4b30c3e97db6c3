#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "comm/shared/memory_sharing.h"
#include "comm/transport.h"
#include "core/backend.h"

namespace starling {

struct PeerSettings {
  double timeout_seconds = 300.0;
  int replica = 1;  ///< ranks of a replica (comm/replica.h)
  /// Device memory for a piece of what a replica's ranks exchange, of which each rank has two
  std::size_t piece_bytes = std::size_t{32} << 20;
};

/// Wraps `between` with mixers in which GPUs of one host read each other's parameters in device
/// memory, as direct_transport.h does for CPUs. Everything else (other hosts' ranks, sums,
/// gradients, the control plane) uses `between`. A bucket's two buffers and two counters are in
/// memory that the host's ranks have mapped. The owner's device sets the counters and the other
/// devices poll them; the host only issues work to streams. The mixer's operations:
/// - start() sets `published` on the update stream, after the work on it and on the compute stream
/// - wait() waits, on the current stream, for the neighbours to publish as often
/// - release() sets `released` on the update stream: the neighbours' parameters were read
/// - wait_until_writable() waits, on the current stream, for all readers of the other buffer
/// In a graph the counters advance with the steps (StepValues::pass). A step can be captured after
/// an eager step has published, since the wait for readers is part of the graph.
///
/// With replicas their sums of gradients and gathered parameters go by such memory too
/// (peer_parts.h), from the communication stream.
///
/// Ranks that wait for each other cannot deadlock, even if a host is blocked (a driver may make the
/// host wait for the device when it first loads a kernel): what a rank waits for in exchange k its
/// peers signal in exchange k or before, and every rank issues the signals of exchange k for all
/// buckets before any of its waits or, without overlap, in the (step, bucket) order of all ranks.
///
/// A wait that times out ends on the device, and all later ones at once; then every function throws
/// Error(kLost) with step, bucket, round, rank and the rank's last activity.
///
/// Collective. Null, with the same `refusal` on all ranks, if two ranks of a host cannot map each
/// other's memory, which is tested with a small block; null without a refusal if no host has two
/// ranks. Moves from `between` only on success. If the memory for buckets cannot be set up later,
/// all ranks use `between` only, and rank 0 logs the reason.
std::unique_ptr<Transport> make_peer_transport(std::unique_ptr<Transport>&& between,
                                               Backend& backend,
                                               std::unique_ptr<MemorySharing> sharing,
                                               const PeerSettings& settings, std::string& refusal);
/// The same between processes.
std::unique_ptr<Transport> make_peer_transport(std::unique_ptr<Transport>&& between,
                                               Backend& backend, const PeerSettings& settings,
                                               std::string& refusal);

}  // namespace starling
