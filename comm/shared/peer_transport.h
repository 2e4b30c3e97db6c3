#pragma once

#include <memory>
#include <string>

#include "comm/shared/memory_sharing.h"
#include "comm/transport.h"
#include "core/backend.h"

namespace starling {

struct PeerSettings {
  double timeout_seconds = 300.0;
};

/// GPUs of one host read each other's parameters where they lie, as direct_transport.h does on
/// CPUs; everything else (other hosts' ranks, sums, gradients, the control plane) goes by
/// `between`. A bucket's two buffers lie in memory that the host's ranks have mapped, with two
/// counters beside them that its owner's device sets and the others' devices look at; the host
/// issues all of it to streams and waits for nothing. Of the mixer:
///   start                signals `published` on the update stream, once it and the compute stream
///                        have come so far
///   wait                 awaits, on the current stream, that the neighbours have published as
///                        often
///   release              signals `released` on the update stream: the neighbours' parameters have
///                        been read
///   wait_until_writable  awaits, on the current stream, that all readers of the other buffer have
///                        released what they read there
/// In a graph the counts go on with the steps (StepValues::pass). A step can be captured once an
/// eager step has published before it, since the wait for the readers is part of it.
///
/// Streams of two ranks that await each other cannot stand still for ever, wherever their hosts are
/// held up (a driver may let the host wait for its device when it first loads a kernel): what a
/// rank awaits for exchange k, its peers signal for exchange k and before, and every rank issues
/// the signals of exchange k for all its buckets before it awaits any of them, or, without overlap,
/// in the order of (step, bucket) that all ranks share.
///
/// A wait that passes the limit ends on the device, and all later ones at once; every function here
/// then throws Error(kLost) that names step, bucket, round, the rank and its last sign of life.
///
/// Collective. Null, with the same `refusal` on all ranks, where any two ranks of a host cannot map
/// each other's memory, which is tried out with a small block; null without a refusal where no host
/// has two ranks. `between` is taken over on success alone. Where memory for the buckets is refused
/// later, all ranks go on with `between` alone, and rank 0 says why.
std::unique_ptr<Transport> make_peer_transport(std::unique_ptr<Transport>&& between,
                                               Backend& backend,
                                               std::unique_ptr<MemorySharing> sharing,
                                               const PeerSettings& settings, std::string& refusal);
/// A peer transport between processes.
std::unique_ptr<Transport> make_peer_transport(std::unique_ptr<Transport>&& between,
                                               Backend& backend, const PeerSettings& settings,
                                               std::string& refusal);

}  // namespace starling
