#pragma once

#include <memory>
#include <vector>

#include "comm/nccl/nccl.h"
#include "comm/transport.h"
#include "core/backend.h"
#include "core/error.h"

// What lives here: exchanges between GPUs. nccl.h: all that is asked of NCCL, which tests replace;
// library: NCCL, opened at run time. transport: the Transport; watchdog: the thread that notices
// what never ends, and aborts it.

namespace starling {

struct NcclSettings {
  double timeout_seconds = 300.0;
  int max_ctas = 0;             ///< 0: NCCL's own choice
  double watch_seconds = 0.05;  ///< between looks of the watchdog
};

/// NCCL could not connect the ranks; every rank throws it, with the lowest failing rank's reason.
class NcclSetupError : public Error {
 public:
  explicit NcclSetupError(const std::string& message) : Error(ExitCode::kLost, {"nccl", message}) {}
};

/// Exchanges between GPUs by NCCL, in the order of issue, on the communication stream; the host
/// never waits for the device. So only one lane at a time may have exchanges of GPU tensors under
/// way. One in which a rank is late keeps its kernel, and the GPU's cores that this takes, on the
/// ranks that wait (NcclSettings::max_ctas). start_exchange() lets the communication stream wait
/// for the update stream (and the compute stream), so that what is sent is final and no update
/// reads a receive buffer any more, issues the operations there, and records an event; wait() lets
/// the current stream wait for that event, so "what came" is valid for work issued to it
/// afterwards, and throws only what the watchdog has found by then. Pairs and neighbours are
/// grouped sends and receives on the world's communicator. A group's sum is an out-of-place
/// all-reduce on the group's own communicator (Transport::prepare makes it), whose order of
/// summation is NCCL's; a sum of bf16 numbers, or of a group that was not prepared, goes by shards,
/// each summed by one member in rank order. kNodes is a reduce-scatter in the node, the shards'
/// exchange and mix, and an all-gather. `control` carries the control plane and host tensors.
///
/// The host does wait, within the time limit, where NCCL sets up connections: at the start, in
/// prepare(), and in the first exchange with a peer. Buffers of exchanges and gradients are
/// registered at their first use, and so are kept until the end.
///
/// A watchdog thread looks at every communicator's asynchronous error and at every exchange: one
/// that is not through `timeout_seconds` after it could have started (its data was ready and the
/// exchange before it through) is taken for lost. Then all communicators are aborted, so that
/// nothing hangs, and every later call throws Error(kLost) that names step, bucket, round, the
/// ranks and NCCL's message.
///
/// A capture (comm/capture.h) makes the same calls part of its graph. The communication stream
/// joins it, nothing is registered, no event of the capture is asked for, and tickets are good
/// until its first launch. The watchdog follows each launch as one entry, whose time counts from
/// the launch, or from the end of what it followed before. What NCCL wants of graphs:
/// - Whether an operation is captured is the same on all its ranks, and so is the order of captures
///   and of launches: ranks agree on that. All operations of a rank are on one stream, so within a
///   graph and between graphs, which the compute stream launches, they follow each other, on
///   whatever communicators: NCCL_LAUNCH_ORDER_IMPLICIT, which orders what streams leave open, is
///   not needed.
/// - Captured and other operations on one communicator may follow each other
///   (NCCL_GRAPH_MIXING_SUPPORT, on unless somebody unsets it).
/// - A group of a non-blocking communicator is launched by a thread of NCCL's: the capture is in
///   the thread-local mode, in which other threads may do as they like, and the transport waits,
///   asking NCCL alone, until the communicator is not busy. A capture that is spoilt is not handed
///   to NCCL; a call that NCCL fails in one ends the communicators, and the line says how to run
///   without graphs.
/// - Connections are made before the capture, by an exchange of the same peers.
/// - A communicator lives until no graph holds it: destroy graphs before the transport.
///
/// Collective. `control` is taken over on success alone: a NcclSetupError leaves it to the caller.
/// The backend outlives the transport.
std::unique_ptr<Transport> make_nccl_transport(std::unique_ptr<Transport>&& control,
                                               Backend& backend, std::unique_ptr<Nccl> nccl,
                                               const NcclSettings& settings);

}  // namespace starling
